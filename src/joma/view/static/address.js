// What is seen, as words: the address of the page holds them, so that a link shows the same. In a notebook, where the
// address is not ours, they live as long as the cell.

class Seen {
  /** @param {boolean} inAddress whether the page's address is ours @param {() => void} moved called when somebody goes back or follows a link */
  constructor(inAddress, moved) {
    this.inAddress = inAddress;
    this.words = new URLSearchParams();
    this.read();
    this.moved = () => { this.read(); moved(); };
    if (inAddress) addEventListener("hashchange", this.moved);
  }

  read() {
    if (this.inAddress) this.words = new URLSearchParams(location.hash.replace(/^#\??/, ""));
  }

  /** @param {string} name @param {string} [otherwise] @returns {string} */
  get(name, otherwise = "") { return this.words.get(name) ?? otherwise; }

  /** @param {string} name @returns {string[]} */
  all(name) { return this.words.getAll(name); }

  /** Change words: null takes one away, a list gives several. step: whether going back should undo it.
   * @param {Object<string, string | number | boolean | null | string[]>} given @param {boolean} [step] */
  put(given, step = false) {
    for (const [name, value] of Object.entries(given)) {
      this.words.delete(name);
      if (Array.isArray(value)) value.forEach((one) => this.words.append(name, one));
      else if (value !== null && value !== false && value !== "") this.words.set(name, value === true ? "1" : String(value));
    }
    if (!this.inAddress) return;
    const address = `#?${this.words}`;
    if (address !== location.hash) history[step ? "pushState" : "replaceState"](null, "", address);
  }

  close() { removeEventListener("hashchange", this.moved); }
}
