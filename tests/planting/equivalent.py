"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "studies/__init__.py title | wrong key kept | place = Path(__path__[0]) / room(name) / _file(name) | 0 -> -1": (
        "The package has one folder: its first is its last."
    ),
    "studies/galore/galore_lowrank/run.py same_norms | off by one | for _ in range(BALANCING): | "
    "BALANCING -> BALANCING - 1": (
        "Rows and columns are rescaled in turn until nothing moves: one turn fewer of many leaves the same matrix."
    ),
    "studies/galore/galore_table/run.py Trainer._train | wrong key kept | "
    "missing = [[np.nan] * len(found[0])] * (len(looks) - len(found)) | 0 -> -1": (
        "Every look has as many losses as there are sources of text: the first row is as long as the last."
    ),
    "studies/hierarchy/shallow_first/run.py _ranks | unit | return (left + right).double() / 2 |  /  ->  * ": (
        "Ranks are only correlated, and a correlation does not change when all ranks are multiplied by four."
    ),
    "studies/inductive_bias/inductive_bias/hypercube.py Cubes.labels | mask | return torch.where(torch.einsum("
    '"mti,mpi->mtp", planes, bits[..., : self.cube.informative]) > 0, 1.0, -1.0) | 1.0, -1.0 -> -1.0, 1.0': (
        "All labels change sign, those that are fitted and those that are asked for: the classifiers change sign too, "
        "and every accuracy stays. The planes are random in sign anyway."
    ),
    "studies/inductive_bias/inductive_bias/run.py Digits._stream | wrong key kept | "
    "return streams(self.config.seed, [seed], step, device=self.config.device)[0] | 0 -> -1": (
        "One seed is given and one stream comes back: the first is the last."
    ),
    "studies/isotropic/_forms.py sample_mean | accumulation | "
    "total, square = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64) | "
    "torch.float64 -> torch.float32": "Zeros, to which samples of float64 are added: the sums are float64 either way.",
    "studies/rebound/rebound_onset/run.py _validation.measure | wrong key kept | count = inputs[0].numel() | "
    "0 -> -1": "The texts are stacked: each has as many tokens as the others.",
    "studies/rebound/layer_lottery/run.py learned | wrong key kept | "
    "return np.asarray(alive(run, NETWORKS)[0] & (best_loss(run, NETWORKS)[0] < bound)) | 0 -> -1": "The study trains "
    "with one learning rate: the first is the last.",
    "studies/rebound/layer_lottery/run.py learned | wrong key kept | "
    "return np.asarray(alive(run, NETWORKS)[0] & (best_loss(run, NETWORKS)[0] < bound)) | 0 -> -1 (2)": "The study "
    "trains with one learning rate: the first is the last.",
    "studies/salience/eq6.py lowest_entropy | accumulation | "
    "fine = torch.linspace(fine[max(best - 1, 0)], fine[min(best + 1, len(fine) - 1)], 60, dtype=torch.float64) | "
    "torch.float64 -> torch.float32": "Only the times at which a flat minimum is looked for: the entropies there are "
    "float64 either way, and the smallest moves by 2e-11, less than the grid is off.",
    "measure/power_law.py _fitted | stale | usable[:, -1] = False  # a tail of one | usable[:, -1] -> _": (
        "The mean of a tail of one lies exactly 0 above its beginning, which EVEN has refused already."
    ),
    "probes/lengths.py lengths_of | off by one | "
    "most = max(1, most - 1 - (padding if isinstance(padding, int) and padding > 0 else 0)) |  >  ->  >= ": (
        "A padding token of number 0 takes 0 away, as no padding token does."
    ),
    "scan/formats/adapter.py _triangle | mask | return torch.where(r.diagonal() < 0, -1.0, 1.0).to(r)[:, None] * r"
    " | -1.0, 1.0 -> 1.0, -1.0": "Two triangles are multiplied: both change their sign, and their product does not.",
    "host/words.py _container | off by one | plain = len(value) <= longest and all(isinstance(one, int | float | str |"
    " None) for one in inside) |  <=  ->  < ": "So many entries are written in three times as many characters or more,"
    " too many for the check below.",
    "studies/depth_width/depth_width/study.py _fastest | accumulation | "
    "curves = [sweep.curves[i, :, sweep.best_rate(i)].mean(-1) for i in range(len(sweep.layers))] | mean -> sum": (
        "Only the lowest of several shapes is named, and all have as many seeds: their sums are ordered as their means."
    ),
    "studies/depth_width/depth_width/run.py TreeReader.__init__ | wrong key kept | "
    "self.vocabulary, self.context = trees[0].hblt.vocabulary, trees[0].hblt.length | 0 -> -1 (2)": (
        "Tokens of all trees are joined in one array, which torch refuses where their lengths differ."
    ),
    "studies/rebound/forecast/run.py entropy_after.look | axis | "
    "total[:, layer] = torch.special.entr((value + moved).softmax(-1)).sum(-1).mean((1, 2, 3)) | -1 -> -2": (
        "There are as many queries as keys: all entries are added and divided by the same number either way."
    ),
    "host/memory.py free_memory | accumulation | "
    'known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")][:1] |  +=  ->  = ': (
        "The list is still empty there: nothing is lost."
    ),
    "report/claims/panel_readers.py _one_layer | wrong key kept | "
    'rows = layer_curves(run, "L1")[0] | 0 -> -1': "The network has one layer: its first is its last.",
    "runs/store.py Run.last_step | wrong key kept | "
    "return None if step is None else self._checked_steps([step], name)[0] | 0 -> -1": (
        "One step is given and one comes back: the first is the last."
    ),
    "data/samples.py write_sequences | off by one | if length > count: |  >  ->  >= ": (
        "Where the sequence is as long as the vocabulary no pad is put before it, and that changes nothing."
    ),
    "measure/_lanczos.py block_lanczos | transposed | "
    "taken.append(Step((diagonal + diagonal.mT) / 2, following, drift)) | diagonal.mT -> diagonal": (
        "y^T y is its own transpose but for the last bit, and the eigenvalues are taken from one triangle alone."
    ),
    "measure/registry.py leading_spectrum | wrong key kept | "
    "return _leading_spectra(_of_dims(w, 2)[None], generator)[0] | 0 -> -1": (
        "A stack of one matrix is given: the first result is the last."
    ),
    "optim/projector.py _signed | accumulation | "
    "overlap = (directions[..., :known] * start[..., :known].to(directions.dtype)).sum(-2, keepdim=True) | "
    "sum -> mean": "Only the sign of the overlap is used, and a mean has the sign of its sum.",
    "probes/_own.py watching.before | wrong key kept | "
    "real[0] = torch.ones_like(ids, dtype=torch.bool) if isinstance(ids, Tensor) else None | 0 -> -1": (
        "A list of one place, which two functions share: the first is the last."
    ),
    "theory/_radial_law.py RadialLaw._theta1 | off by one | return torch.where(s < 0, tail, 1 - tail) |  <  ->  <= ": (
        "At 0 the tail is one half but for rounding, as no law here has mass at a point: 1 less it is the same."
    ),
    "models/llama.py Llama.__init__ | accumulation | "
    "angles = torch.outer(torch.arange(config.context, dtype=torch.float64), speeds).repeat(1, 2) | "
    "torch.float64 -> torch.float32": (
        "Positions are whole numbers, which float32 holds, and their product with speeds of float64 is float64."
    ),
    "training/cross_entropy.py _save | wrong key kept | ctx.sizes = (inputs[0].shape[1], *inputs[1].shape[1:]) | "
    "0 -> -1": "The first of the inputs are the features, the last the targets: both have as many positions.",
    "cli/scan.py _page | wrong key kept | return write_scan_page(shown[0], options.out / "
    'f"{done[0].run.stem}.html") | 0 -> -1': ("One scan is shown: the first is the last."),
    'report/claims/panels.py _powers | off by one | return [(value, f"{value:,.0f}" if value >= 10 else '
    'f"{value:.2g}") for value in doublings[::every]] |  >=  ->  > ': ("Ten is written 10 either way."),
    'runs/export.py _write_parquet | wrong key kept | if len(batch["step"]) >= _ROWS_AT_ONCE: | "step" '
    "-> 'integer'": ("Every column of a table has as many rows as the others."),
    "scan/formats/opening.py _target | wrong key kept | return fitting[0] | 0 -> -1": (
        "One is left, else it was refused above: the first is the last."
    ),
    "scan/formats/checkpoint.py choose_weights | wrong key kept | if len(fitting) == 1 and not "
    "_SHARD.fullmatch(fitting[0]): | 0 -> -1": ("One file is there, as the same line says: the first is the last."),
    "studies/galore/galore_lowrank/run.py spectrum_of | axis | fine = "
    "grams.isfinite().all(-1).all(-1)[..., None] | -1 -> -2 (2)": (
        "All entries of a matrix are asked, by rows first or by columns first."
    ),
    "studies/depth_width/depth_width/run.py TreeReader.__init__ | wrong key kept | self.vocabulary, "
    "self.context = trees[0].hblt.vocabulary, trees[0].hblt.length | 0 -> -1": (
        "The vocabulary is one more than the length here, and torch refuses to join trees whose lengths differ."
    ),
    "studies/reversal/reversal_decoder/run.py FactNetworks.__init__ | wrong key kept | first, usual = "
    "group[0], config.rates[config.depths.index(group[0].layers)] | 0 -> -1 (2)": (
        "A group has one number of layers, which is in its name: that of the first is that of the last."
    ),
    'studies/sparsity/deja_vu/run.py Members._losses.kept | sign | return chosen if how == "predicted" '
    "else chosen.roll(-(-chosen.shape[-2] // 2), -2) | -chosen.shape[-2] -> chosen.shape[-2]": (
        "Half of n, rounded up, and less half of n, rounded down, lie n apart: turned by n all is where it was."
    ),
    "view/claims.py claim_of | dropped clause | paper = kept(finding.id, finding.claim) if kept and size == "
    '"quick" else None |  and size == "quick" -> ': "What was found at paper scale stands over what is kept of it.",
    "measure/_sparsity_cuda.py Passes._above | dropped clause | long = q.dtype != torch.float32 and q.shape[3] == 128 "
    "and self.problem.queries >= 4096 |  and self.problem.queries >= 4096 -> ": (
        "Another shape of blocks gives the same numbers; it is only slower for short texts."
    ),
    "report/template/playground/forms.js onTheKernels | off by one | const step = 0.3, first = -step * Ma"
    "th.ceil((Math.log(n) + 36) / step), count = Math.ceil((6 - first) / step); | ceil -> floor": (
        "A table of nodes begins one step later: what is beyond weighs e^-36."
    ),
    "view/static/chart.js grow | logic | if (!plot || !old || !x || spec.same === undefined || spec.same "
    "!== old.same || spec.areas || spec.logX || isDense(spec) !== isDense(old)) return false; | || -> &&": (
        "A chart has a plot as soon as it has something to draw: neither is there without the other."
    ),
    'view/static/view.js render | dropped clause | if (model.get("screen") && !seen.get("screen")) seen.w'
    'ords.set("screen", model.get("screen")); | && !seen.get("screen") -> ': (
        "A notebook alone names a screen, and its page has no address that could name another."
    ),
    "view/static/axes.js limitsOf | wrong key kept | const most = Math.max(Math.abs(low), Math.abs(high))"
    ", room = high - low > 1e-9 * most ? (high - low) / 20 : most / 10 || 1; | max -> min": (
        "The two differ by a share of 1e-9 at most where this decides anything."
    ),
    "scan/formats/adapter.py _triangle | off by one | return torch.where(r.diagonal() < 0, -1.0, 1.0).to("
    "r)[:, None] * r |  <  ->  <= ": (
        "A row of a triangle whose diagonal is 0 may have either sign: singular values stay."
    ),
    "studies/stability/collapse/rules.py _fall | sign | "
    "alarm, falls = EntropyFall(), np.full(entropy.shape, -np.inf) | -np.inf -> np.inf": (
        "The first places are set to -inf below, and all others to what was found."
    ),
    'cli/options.py parse | dropped clause | group = parser.add_argument_group("configuration", '
    '(type(preset).__doc__ or "").partition("\\n")[0]) |  or "" -> ': (
        "A dataclass without a docstring is given one by Python: there is always some text."
    ),
    "measure/_following.py _settled | off by one | if step % 2 or step == steps - 1: |  -  ->  + ": (
        "The steps are even in number, so that the last is made orthonormal by the other half of the line; and "
        "all is made so once more at the end."
    ),
    "measure/allocation.py allocate | wrong key kept | cheap = cheaper(len(shares), after[0].numel() if "
    "members else after.numel()) | 0 -> -1": (
        "The states of all members have one shape: as many numbers in the first as in the last."
    ),
    "measure/_sparsity_triton.py top_kernel | sign | v1, v2, v3, v4 = lower + step, lower + 2.0 * step, "
    "upper - 2.0 * step, upper - step |  -  ->  +  (2)": (
        "One of four places falls outside: a round leaves two fifths of the bracket instead of one, and 24 "
        "rounds leave less than float32 tells apart."
    ),
    "monitor/sharded.py SharedMatrices.settle | wrong key kept | mine, firsts = self.meshes(), (min(each) "
    "for each in zip(*meshes, strict=True)) | min -> max": (
        "Meshes that hold a matrix hold the same one: which of them measures it is all one, as long as all agree."
    ),
    "optim/_groups.py regroup | dropped clause | if basis is not None and energies is not None: |  and "
    "energies is not None -> ": ("Bases and energies are made in one place: neither is there without the other."),
    "probes/_own.py watching.before | wrong key kept | real[0] = mask.bool() | 0 -> -1": (
        "A list of one place, which two functions share: the first is the last."
    ),
    "report/scans/figures.py compared_pictures | wrong key kept | titles = {name: "
    "curve_title(scans[0].curves[name]) for name in both} | 0 -> -1": (
        "The title is made of what is in the name of a curve, and both scans have that name."
    ),
    "studies/rebound/reading.py transport | transposed | return ((found + found.mT) / 2).to(now) | found.mT -> found": (
        "It is symmetric but for the last bits: the mean with its transpose takes these away."
    ),
    "studies/rebound/forecast/record.py past_of_words | accumulation | return "
    "Past(torch.from_numpy(run.steps(names[0]).astype(np.float64)), *parts) | np.float64 -> np.float32": (
        "Steps are whole numbers, which float32 holds; logarithms of them move by 1e-7, far less than a forecast "
        "is off."
    ),
    'studies/salience/lemma6.py run | wrong constant | run.keep("R/top", lambda: _peak(_remainder, 12.0)) | '
    "12.0 -> 24.0": (
        "The grid is twice as coarse, and the peak is found between its points: it moves by 1e-8, its height in "
        "no digit."
    ),
    'studies/sparsity/deja_vu/run.py Members._losses.kept | sign | return chosen if how == "predicted" else '
    "chosen.roll(-(-chosen.shape[-2] // 2), -2) | -(-chosen.shape[-2] // 2) -> (-chosen.shape[-2] // 2)": (
        "Half of n rounded up, or down: either is as far from where the units were chosen."
    ),
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
