"use strict";
// The page: draws everything from one dictionary (nestling/report/page_content.py), again and again if it changes.
// What the reader chose (axes, hidden experiments, sorting, what is unfolded, where the page is scrolled) stays.
window.nestlingRender = (() => {
  const { html, mixed, svg, symbol } = Draw;
  const MOST_NAMES = 30; // below a figure; the others are shown when a point is
  const state = { hidden: new Set(), x: {}, y: {}, sort: {}, open: {} };
  const slots = new Map(); // key → { signature, node }
  const plots = new Map(); // element → function that draws it for a width
  const root = document.getElementById("nestling-page");
  const bubble = html("div", { class: "tip", role: "status", hidden: true });
  let data = { experiments: [] };

  // What figures ask of the page.
  const page = {
    look: (number) => data.experiments.find((one) => one.number === number) ?? { name: "", colour: "var(--accent)", symbol: "circle" },
    hides: (number) => state.hidden.has(page.look(number).label),
    isHidden: (figure, series) => page.hides(series.experiment) || state.hidden.has(seriesKey(figure, series)),
    chosen: (figure) => ({ x: choice(figure.axes, state.x[figure.key]), y: choice(figure.measures, state.y[figure.key]) }),
    nothing: (figure, y) => (figure.series.every((one) => page.isHidden(figure, one)) ? "everything is hidden" : `no values of ${y.title} yet`),
    spoken: (figure, lines, x, y) => `${figure.title}: ${y.title} by ${x.title}. ` + lines.map((line) => `${line.name}: ${Draw.format(line.there.at(-1).y, y.unit)}`).join(", "),
    sorting: (name) => state.sort[name] ?? {},
    sort: (name, column, down) => { state.sort[name] = { column, down }; render(); },
    named,
    tip,
  };

  const choice = (options, name) => options.find((one) => one.name === name) ?? options[0];
  const seriesKey = (figure, series) => `${figure.key}/${series.name ?? ""}`;

  function named(number, text) {
    const look = page.look(number);
    return html("span", { class: "named" }, svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, symbol(look, 4.6)), html("span", {}, text ?? look.name));
  }

  function tip(event, lines = null) {
    bubble.hidden = !lines;
    if (!lines) return;
    bubble.replaceChildren(...lines.map((line) => (Array.isArray(line)
      ? html("b", {}, html("i", { style: `background: ${line[1]}` }), line[0])
      : html("span", {}, line))));
    const width = bubble.offsetWidth, right = event.clientX + 16 + width > innerWidth - 8;
    const x = right ? Math.max(8, event.clientX - width - 16) : event.clientX + 16;
    bubble.style.transform = `translate(${Math.round(x)}px, ${Math.round(Math.max(8, event.clientY - bubble.offsetHeight - 12))}px)`;
  }

  // A part of the page: built again only if what it shows has changed.
  function slot(keys, key, value, build) {
    keys.push(key);
    const signature = JSON.stringify(value);
    const old = slots.get(key);
    if (old?.signature === signature) return;
    const node = old?.node ?? html("div", { class: "slot", "data-slot": key });
    const scrolled = [...node.querySelectorAll(".scroll, .legend")].map((one) => one.scrollLeft);
    const focused = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    for (const plot of node.querySelectorAll(".plot")) { plots.delete(plot); watcher.unobserve(plot); }
    node.replaceChildren(build());
    slots.set(key, { signature, node });
    if (!old) place(node, keys);
    [...node.querySelectorAll(".scroll, .legend")].forEach((one, number) => { one.scrollLeft = scrolled[number] ?? 0; });
    if (focused) node.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  function place(node, keys) {
    const before = slots.get(keys.at(-2))?.node;
    before ? before.after(node) : root.prepend(node);
  }

  function render() {
    const keys = [], { experiments } = data;
    const of = (section) => (data.panels ?? []).filter((panel) => panel.section === section);
    slot(keys, "header", [data.kicker, data.heading, data.sentences, data.tiles, data.problems], header);
    if (experiments.length > 1) slot(keys, "controls", experiments, controls);
    for (const panel of [...of("first"), ...of("curves")]) card(keys, panel, panel.section === "first");
    tables(keys, "overview");
    if (of("overview").length) slot(keys, "overview", [of("overview"), experiments], () => html("div", { class: "grid" }, of("overview").map((panel) => panelCard(panel))));
    if (of("details").length) slot(keys, "details heading", "", () => html("h2", {}, "In detail"));
    of("details").forEach((panel, place) => slot(keys, `detail ${panel.name}`, [panel, experiments, hiddenSeries(panel)], () => details(panel, place === 0)));
    tables(keys, "details");
    if (data.runs?.length) slot(keys, "runs", [data.runs, experiments], runs);
    for (const [key, { node }] of slots) if (!keys.includes(key)) { node.remove(); slots.delete(key); }
    // The legend stays the same elements, or the second click of a double click would miss its button.
    for (const button of root.querySelectorAll(".legend [data-experiment]")) button.setAttribute("aria-pressed", String(!page.hides(Number(button.dataset.experiment))));
    root.querySelector(".legend .all")?.classList.toggle("off", !experiments.some((one) => state.hidden.has(one.label)));
    for (const part of root.querySelectorAll("[data-experiment]:not(button)")) part.classList.toggle("off", page.hides(Number(part.dataset.experiment)));
    for (const [plot, draw] of plots) root.contains(plot) ? draw(plot.clientWidth) : plots.delete(plot);
  }

  const hiddenSeries = (panel) => [...state.hidden].filter((key) => key.startsWith(`${panel.name} `));

  function tables(keys, section) {
    for (const table of data.tables ?? []) {
      if (table.section === section) slot(keys, `table ${table.name}`, [table, data.experiments, state.sort[table.name]], () => Tables.draw(table, page, folded));
    }
  }

  const together = (text) => text?.replace(/(\d) (%|[kMGTP]\b)/g, "$1\u00a0$2"); // no line break before a unit

  function header() {
    return html("header", {},
      html("p", { class: "kicker" }, data.kicker), html("h1", {}, together(data.heading)),
      (data.sentences ?? []).map((sentence) => html("p", { class: "lead" }, together(sentence))),
      data.problems?.length > 0 && html("div", { class: "problems", role: "note" }, html("b", {}, data.problems.length > 1 ? `${data.problems.length} things to know` : "To know"),
        html("ul", {}, data.problems.map((problem) => html("li", {}, problem)))),
      data.tiles?.length > 0 && html("dl", { class: "tiles" }, data.tiles.map(({ label, value, note }) => html("div", {},
        html("dt", {}, label), html("dd", {}, html("span", { class: "big" }, together(value)), html("span", { class: "about" }, together(note)))))));
  }

  function controls() {
    const labels = data.experiments.map((one) => one.label);
    const buttons = data.experiments.map(({ number, label }) => html("button", {
      type: "button", "data-experiment": number, "data-key": `legend-${label}`,
      title: `${label}: click to hide or show, double-click for it alone`,
      onclick: (event) => { if (event.detail < 2) toggle(label); },
      ondblclick: () => alone(label, labels),
    }, named(number)));
    const all = html("button", { type: "button", class: "all", "data-key": "legend-all", onclick: () => { labels.forEach((label) => state.hidden.delete(label)); render(); } }, "show all");
    return html("div", { class: "legend", role: "group", "aria-label": "Experiments shown" }, buttons, all);
  }

  function toggle(key) {
    state.hidden.has(key) ? state.hidden.delete(key) : state.hidden.add(key);
    render();
  }

  function alone(label, labels) {
    const was = labels.every((other) => other === label || state.hidden.has(other));
    labels.forEach((other) => (was || other === label ? state.hidden.delete(other) : state.hidden.add(other)));
    render();
  }

  function card(keys, panel, tall) {
    const names = panel.figures.map((_, place) => `${panel.name} ${place}`);
    const chosen = names.map((name) => [state.x[name], state.y[name]]);
    slot(keys, `panel ${panel.name}`, [panel, data.experiments, chosen, hiddenSeries(panel)], () => panelCard(panel, tall));
  }

  function panelCard(panel, tall = false) {
    const figures = panel.figures.map((figure, place) => block(panel, figure, place, tall));
    const choices = panel.figures.map((figure, place) => chooser(figure, `${panel.name} ${place}`));
    return html("section", { class: "card", id: panel.name },
      html("div", { class: "heading" }, html("h3", {}, panel.title), choices), html("p", { class: "about" }, panel.about), figures);
  }

  function details(panel, first) {
    const figures = panel.figures.map((figure, place) => block(panel, figure, place, false));
    return folded(panel.name, { class: "card", id: panel.name, open: first || data.experiments.length <= 2 },
      html("summary", {}, html("h3", {}, panel.title)), html("p", { class: "about" }, panel.about),
      html("div", { class: figures.length > 1 ? "parts" : "" }, figures));
  }

  // A figure with the name of its experiment, its own legend if its lines have names, and its drawing.
  function block(panel, figure, place, tall) {
    const key = `${panel.name} ${place}`, own = { ...figure, key, title: figure.title ?? panel.title };
    const plot = html("div", { class: "plot" });
    const draw = figure.kind in Rows ? Rows[figure.kind] : Lines.draw;
    plots.set(plot, (width) => { if (width > 0) plot.replaceChildren(draw(own, page, Math.round(width), tall)); });
    watcher.observe(plot);
    const one = figure.experiment ?? null;
    const names = (figure.series ?? []).filter((series) => series.name).map((series) => {
      const name = seriesKey(own, series), colour = mixed(page.look(series.experiment).colour, series.shade ?? 1);
      return html("button", { type: "button", "data-key": name, "aria-pressed": String(!state.hidden.has(name)), onclick: () => toggle(name) }, html("i", { style: `background: ${colour}` }), series.name);
    });
    return html("div", { class: "block", "data-experiment": one }, one !== null && data.experiments.length > 1 && html("h4", {}, named(one)), names.length > 0 && html("div", { class: "keys" }, names), plot,
      figure.names?.length <= MOST_NAMES && html("p", { class: "note" }, figure.names.map((name, number) => `${number + 1}\u00a0${name}`).join(" · ")));
  }

  // Buttons for the x axis and a list of measures, where there is a choice.
  function chooser(figure, key) {
    const { x, y } = figure.axes ? { x: choice(figure.axes, state.x[key]), y: choice(figure.measures, state.y[key]) } : {};
    const by = figure.axes?.length > 1 && html("div", { class: "segments", role: "group", "aria-label": "Horizontal axis" }, figure.axes.map((one) => html("button", {
      type: "button", "data-key": `${key} x ${one.name}`, "aria-pressed": String(one === x), onclick: () => { state.x[key] = one.name; render(); },
    }, one.title.split(/,| of /)[0])));
    const measure = figure.measures?.length > 1 && html("select", { "data-key": `${key} y`, "aria-label": "Vertical axis", onchange: (event) => { state.y[key] = event.target.value; render(); } },
      figure.measures.map((one) => html("option", { value: one.name, selected: one === y }, one.title)));
    return (by || measure) && html("div", { class: "choices" }, measure, by);
  }

  function runs() {
    const list = data.runs.flatMap(({ experiment, runs: own }) => own.map((run) => {
      const { label } = page.look(experiment);
      return folded(`${label} ${run.seed}`, { class: "run", "data-experiment": experiment },
        html("summary", {}, named(experiment, label), ` seed ${run.seed} `, html("small", {}, run.state)),
        run.command && copied(run.command, "the command"), run.config && copied(run.config, "config.toml"));
    }));
    return html("section", {}, html("h2", {}, "Runs"), html("p", { class: "about" }, "The settings of each run, and the command that repeats it."), html("div", { class: "card" }, list));
  }

  // A part that can be folded, and stays as the reader left it.
  function folded(key, attributes, ...children) {
    const node = html("details", { ...attributes, open: state.open[key] ?? attributes.open ?? false }, ...children);
    node.addEventListener("toggle", () => { state.open[key] = node.open; });
    return node;
  }

  function copied(text, name) {
    const source = html("pre", { tabindex: 0, "aria-label": name }, text);
    const button = html("button", { type: "button", class: "small", "aria-label": `Copy ${name}`, onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch { // some browsers give pages on disk no clipboard: select, so that Ctrl+C copies
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } }, "Copy");
    return html("div", { class: "copied" }, source, button);
  }

  const watcher = new ResizeObserver((entries) => {
    for (const { target } of entries) if (Math.round(target.clientWidth) !== target.drawnWidth) { target.drawnWidth = Math.round(target.clientWidth); plots.get(target)?.(target.drawnWidth); }
  });

  root.replaceChildren();
  document.body.append(bubble);
  addEventListener("scroll", () => tip(null), { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => render());

  return (next) => {
    data = { experiments: [], ...next };
    if (data.title) document.title = data.title;
    render();
  };
})();

nestlingRender(JSON.parse(document.getElementById("nestling-data").textContent));
