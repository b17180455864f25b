"use strict";
// Figures made of rows and areas: coverage, bars, distributions, shares, nested sizes, histograms and maps.
const Rows = (() => {
  const { axis, format, html, mixed, svg, textWidth } = Draw;

  const pointed = (page, lines) => ({
    onpointermove: (event) => page.tip(event, lines),
    onpointerdown: (event) => page.tip(event, lines),
    onpointerleave: () => page.tip(null),
  });

  const foldable = (name) => name.replaceAll(".", ".\u200b"); // long names fold behind their points

  // How often every part of every axis was trained.
  function strips(figure, page) {
    const { colour } = page.look(figure.experiment);
    return html("div", { class: "rows" }, figure.rows.map((row) => {
      const even = row.even === null ? "–" : `${Math.round(100 * row.even)} %`;
      const label = `${row.name}, ${row.units} units: the least trained got ${even} of the most trained`;
      const strip = svg("svg", { viewBox: `0 0 ${row.shades.length} 1`, preserveAspectRatio: "none", role: "img", "aria-label": label });
      for (const { 0: same, index } of row.shades.matchAll(/(.)\1*/g)) { // neighbours of the same shade are one
        strip.append(svg("rect", { x: index, y: 0, width: same.length, height: 1, "fill-opacity": parseInt(same[0], 36) / 35, style: `fill: ${colour}` }));
      }
      const lines = [[row.name, colour], `${row.units} units`, `least over most trained: ${even}`];
      return html("div", { class: "row", ...pointed(page, lines) }, html("span", { class: "name" }, foldable(row.name)), strip, html("span", { class: "value" }, even));
    }));
  }

  // Shares of two groups, one pair of bars per row.
  function bars(figure, page) {
    const { colour } = page.look(figure.experiment);
    const shade = (place) => mixed(colour, place === figure.groups.length - 1 ? 1 : 0.38);
    const legend = html("div", { class: "keys" }, figure.groups.map((name, place) => key(name, shade(place))));
    const rows = figure.rows.map((row) => {
      const texts = row.values.map((value) => format(value, "percent"));
      const drawn = row.values.map((value, place) => html("i", { style: `width: ${100 * (value ?? 0)}%; background: ${shade(place)}` }));
      const lines = [[row.name, colour], ...figure.groups.map((name, place) => `${name}: ${texts[place]} of the units`)];
      const value = row.values.map((one) => (one === null ? "–" : Math.round(100 * one))).join(" → ");
      return html("div", { class: "row", ...pointed(page, lines) },
        html("span", { class: "name" }, foldable(row.name)), html("span", { class: "bars" }, drawn), html("span", { class: "value" }, `${value} %`));
    });
    return html("div", {}, legend, html("div", { class: "rows" }, rows));
  }

  const key = (name, colour) => html("span", { class: "key" }, html("i", { style: `background: ${colour}` }), name);

  // Distributions over clients on a common axis: a histogram, the mean, and the bar from the 10th to the 90th percentile.
  function spread(figure, page, width) {
    const rows = figure.rows.filter((row) => !page.hides(row.experiment));
    const height = 62 * rows.length + 40, left = 4, right = width - 8;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "spread", role: "img", "aria-label": figure.title });
    const scale = axis({ low: figure.low, high: figure.high, unit: figure.unit, start: left, end: right, gap: 62 });
    for (const { value, text } of scale.ticks) {
      const x = scale.place(value), half = textWidth(text) / 2;
      picture.append(svg("line", { x1: x, x2: x, y1: 18, y2: height - 36, class: "grid" }));
      picture.append(svg("text", { x: Math.max(half, Math.min(width - half, x)), y: height - 22, "text-anchor": "middle" }, text));
    }
    picture.append(svg("text", { x: width / 2, y: height - 4, "text-anchor": "middle", class: "title" }, `${figure.title} (${scale.unit})`));
    rows.forEach((row, place) => {
      const look = page.look(row.experiment), top = 62 * place, base = top + 50;
      const mean = `mean ${format(row.mean, figure.unit)}`, about = `${mean} · ${row.count.toLocaleString("en-US")} clients`;
      const most = Math.max(...row.bins), step = (right - left) / row.bins.length;
      const fits = textWidth(look.name) + textWidth(about) + 30 < width;
      picture.append(svg("text", { x: left, y: top + 13, class: "name", style: `fill: ${look.colour}` }, look.name));
      picture.append(svg("text", { x: right, y: top + 13, "text-anchor": "end" }, fits ? about : mean));
      row.bins.forEach((count, bin) => {
        const from = figure.low + (bin / row.bins.length) * (figure.high - figure.low), to = from + (figure.high - figure.low) / row.bins.length;
        const tall = (30 * count) / most;
        const lines = [[look.name, look.colour], `${count} of ${row.count} clients`, `${format(from, figure.unit)} to ${format(to, figure.unit)}`];
        const attributes = { x: left + bin * step + 0.5, width: Math.max(1, step - 1), y: base - tall, height: tall, style: `fill: ${look.colour}`, class: "bin" };
        if (count) picture.append(svg("rect", { ...attributes, ...pointed(page, lines) }));
      });
      const [low, middle, high] = row.quantiles.map(scale.place);
      picture.append(svg("line", { x1: left, x2: right, y1: base, y2: base, class: "tick" }));
      picture.append(svg("rect", { x: low, width: Math.max(1, high - low), y: base + 2, height: 3, style: `fill: ${look.colour}`, rx: 1.5 }));
      picture.append(svg("rect", { x: middle - 1, width: 2, y: base + 1, height: 5, class: "middle" }));
      const at = scale.place(row.mean);
      picture.append(svg("path", { d: `M${at},${base - 34}V${base}`, class: "mean" }));
    });
    return picture;
  }

  // Who trained how often, as shares of a bar.
  function shares(figure, page) {
    return html("div", { class: "shares" }, figure.rows.map((row) => {
      const { colour, name } = page.look(row.experiment);
      const total = row.parts.reduce((sum, part) => sum + part.count, 0);
      const drawn = row.parts.map((part, place) => {
        const shade = 1 - (0.72 * place) / Math.max(1, row.parts.length - 1), share = part.count / total;
        const lines = [[name, colour], part.name, `${part.count.toLocaleString("en-US")} times, ${format(share, "percent")}`];
        const style = `flex: ${part.count} 0 0; background: ${mixed(colour, shade)}; color: ${shade > 0.62 ? "#fff" : "var(--ink)"}`;
        const short = part.name.replace(/^level /, "");
        return part.count > 0 && html("span", { style, ...pointed(page, lines) }, share * 18 > short.length * 0.6 ? short : "");
      });
      const dropped = row.dropped ? `, ${row.dropped.toLocaleString("en-US")} dropped` : "";
      const text = `${total.toLocaleString("en-US")} times in ${row.rounds.toLocaleString("en-US")} rounds${dropped}`;
      return html("div", { "data-experiment": row.experiment },
        html("div", { class: "caption" }, html("b", { style: `color: ${colour}` }, name), html("span", {}, text)), html("div", { class: "bar" }, drawn));
    }));
  }

  // Sub-models as squares inside one another, and what they cost.
  function nested(figure, page) {
    const side = 260, largest = figure.sizes[0].parameters;
    const shade = (place) => mixed("var(--accent)", 0.16 + (0.84 * place) / Math.max(1, figure.sizes.length - 1));
    const picture = svg("svg", { viewBox: `0 0 ${side} ${side}`, class: "nested", role: "img", "aria-label": "nested sub-models" });
    figure.sizes.forEach((size, place) => {
      const edge = side * Math.sqrt(size.parameters / largest);
      const lines = [[`level ${size.name}`, shade(place)], `${format(size.parameters, "count")} parameters`];
      picture.append(svg("rect", { x: 0, y: side - edge, width: edge, height: edge, style: `fill: ${shade(place)}`, class: "square", ...pointed(page, lines) }));
    });
    const rows = figure.sizes.map((size, place) => html("tr", {},
      html("th", { scope: "row" }, html("i", { style: `background: ${shade(place)}` }), size.name),
      html("td", {}, format(size.parameters, "count")), html("td", {}, `${Number(((100 * size.parameters) / largest).toPrecision(2))} %`),
      html("td", {}, format(size.bytes, "bytes")), html("td", {}, format(size.macs, "count"))));
    const head = ["level", "parameters", "share", "bytes", "MACs"].map((name) => html("th", { scope: "col" }, name));
    const table = html("table", {}, html("thead", {}, html("tr", {}, head)), html("tbody", {}, rows));
    const who = figure.experiments.map((number) => page.look(number).name).join(", ");
    return html("div", {}, html("p", { class: "about" }, who), html("div", { class: "sizes" }, picture, html("div", { class: "scroll" }, table)));
  }

  // A histogram.
  function columns(figure, page, width) {
    const [x] = figure.axes, [y] = figure.measures, height = 280, bottom = height - 44;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${y.title} by ${x.title}` });
    const places = figure.bars.map(([place]) => place), half = figure.width / 2;
    const vertical = axis({ low: 0, high: Math.max(...figure.bars.map(([, tall]) => tall)) * 1.05, unit: y.unit, start: bottom, end: 28, gap: 46, whole: true });
    const left = 14 + Math.max(...vertical.ticks.map((tick) => textWidth(tick.text)));
    const horizontal = axis({ low: Math.min(...places) - half, high: Math.max(...places) + half, unit: x.unit, start: left, end: width - 8, gap: 56, whole: true });
    for (const { value, text } of vertical.ticks) {
      picture.append(svg("line", { x1: left, x2: width - 8, y1: vertical.place(value), y2: vertical.place(value), class: "grid" }));
      picture.append(svg("text", { x: left - 7, y: vertical.place(value) + 4, "text-anchor": "end" }, text));
    }
    for (const [place, tall] of figure.bars) {
      const from = horizontal.place(place - half), to = horizontal.place(place + half), up = vertical.place(tall);
      const lines = [`${x.title} ${format(place, "number")}`, `${tall.toLocaleString("en-US")} ${y.title}`];
      picture.append(svg("rect", { x: from + 0.5, width: Math.max(1, to - from - 1), y: up, height: bottom - up, class: "column", ...pointed(page, lines) }));
    }
    for (const { value, text } of horizontal.ticks) picture.append(svg("text", { x: horizontal.place(value), y: bottom + 18, "text-anchor": "middle" }, text));
    picture.append(svg("text", { x: 2, y: 13, class: "title" }, y.title));
    picture.append(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle", class: "title" }, x.title));
    return picture;
  }

  // A table of numbers as shades: one canvas, as there may be tens of thousands of cells.
  function map(figure, page, width) {
    const [x] = figure.axes, [y] = figure.measures, rows = figure.values.length, count = figure.values[0]?.length ?? 0;
    const most = Math.max(1, ...figure.values.flat()), left = 16 + textWidth(String(rows)), height = Math.max(140, Math.min(520, 22 * rows));
    const canvas = html("canvas", { width: Math.round(2 * (width - left)), height: 2 * height, class: "map", role: "img", "aria-label": `${figure.title} by ${x.title} and ${y.title}` });
    canvas.style.cssText = `width: ${width - left}px; height: ${height}px; margin-left: ${left}px`;
    const pen = canvas.getContext("2d"), wide = canvas.width / count, tall = canvas.height / rows, gap = wide > 8 ? 2 : 0;
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    figure.values.forEach((row, down) => row.forEach((value, across) => {
      pen.globalAlpha = value ? 0.15 + 0.85 * Math.sqrt(value / most) : 0; // few samples differ visibly from none
      pen.fillRect(across * wide, down * tall, Math.max(1, wide - gap), Math.max(1, tall - (tall > 8 ? 2 : 0)));
    }));
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const across = Math.floor(((event.clientX - box.left) / box.width) * count), down = Math.floor(((event.clientY - box.top) / box.height) * rows);
      const value = figure.values[down]?.[across];
      page.tip(event, value === undefined ? null : [`${x.title} ${across}, ${y.title} ${down}`, `${value.toLocaleString("en-US")} ${figure.title}`]);
    });
    canvas.addEventListener("pointerleave", () => page.tip(null));
    const step = Math.ceil(rows / Math.floor(height / 18));
    const labels = svg("svg", { width: left, height, class: "labels" });
    for (let row = 0; row < rows; row += step) labels.append(svg("text", { x: left - 8, y: ((row + 0.5) * height) / rows + 4, "text-anchor": "end" }, String(row)));
    const shades = [0, 0.25, 0.5, 1].map((share) => key(String(Math.max(1, Math.round(share * most))), mixed("var(--accent)", 0.15 + 0.85 * Math.sqrt(Math.max(share, 1 / most)))));
    return html("div", { class: "framed" }, html("div", { class: "keys" }, `${figure.title}:`, shades), html("div", { class: "over" }, labels, canvas), html("p", { class: "about axis" }, `${x.title} (across), ${y.title} (down)`));
  }

  return { strips, bars, spread, shares, nested, columns, map };
})();
