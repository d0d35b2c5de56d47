// What hosts make of questions and answers. No page is touched here.

/** A question as the query of an address. @param {Object<string, any>} question @returns {URLSearchParams} */
function queryOf(question) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(question)) {
    if (Array.isArray(value)) value.forEach((one) => words.append(name, one));
    else if (name !== "id" && name !== "ask" && value !== undefined) words.set(name, value === true ? "1" : String(value));
  }
  return words;
}

/** An answer from the wire: the length of its head, the head, steps, values (see packing.py).
 * @param {ArrayBuffer} bytes @returns {[any, ArrayBuffer[]]} */
function unpacked(bytes) {
  const long = Number(new DataView(bytes).getBigUint64(0, true)), steps = 8 + long;
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, long))), values = steps + 8 * head.shape[0];
  return [head, [bytes.slice(steps, values), bytes.slice(values)]];
}

/** A run with what changed of it. @param {any} run @param {{now: Object<string, any>, series: Object<string, any>, alarms: {gone: number, more: any[]}}} change */
function withChange(run, { now, series, alarms }) {
  return {
    ...run, ...now,
    series: run.series.map((/** @type {any} */ one) => ({ ...one, ...series[one.name] })),
    alarms: run.alarms.slice(alarms.gone).concat(alarms.more),
  };
}

/** All runs after news: new ones, of others what changed, and the order of all (see news.py).
 * @param {any[]} runs @param {{order: string[], runs: any[], changes: any[]}} news @returns {any[]} */
function withNews(runs, news) {
  const known = new Map(runs.map((run) => [run.id, run]));
  for (const run of news.runs) known.set(run.id, run);
  for (const { id, ...change } of news.changes) { const run = known.get(id); if (run) known.set(id, withChange(run, change)); }
  return news.order.map((id) => known.get(id)).filter(Boolean);
}

/** The answer of a page that has its data inside. @param {any} data @param {any} question @returns {any} */
function answerOf(data, question) {
  if (question.ask === "titles") return { titles: data.titles };
  if (question.ask === "figures") return data.figures[question.run] ?? { figures: [] };
  if (question.ask === "claims") return { claims: data.claims };
  if (question.ask === "series") {
    const found = data.series[question.run]?.[question.series] ?? { fault: `${question.series} of ${question.run} is not in this page` };
    // Means over all steps are not in a page: whole steps are, and the reader takes the mean of those.
    return (question.whole || question.means?.length) && found.whole ? { ...found.whole, means: [] } : { ...found, means: [] };
  }
  return { fault: "a page with its data inside does not grow" };
}
