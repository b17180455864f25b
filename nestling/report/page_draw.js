"use strict";
// What all figures share: elements, numbers as text, axes, and the symbols of points.
const Draw = (() => {
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], COUNTS = ["", "k", "M", "G", "T", "P", "E"];
  const TIMES = [[1, "s"], [60, "min"], [3600, "h"], [86400, "d"]];

  // Texts of files only ever become attributes and text nodes: nothing in them is read as HTML.
  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  const html = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  // The factor and the name of the unit in which `largest` is written.
  function unitOf(largest, unit) {
    if (unit === "percent") return [0.01, "%"];
    if (unit === "number") return [1, ""];
    if (unit === "seconds") return TIMES.findLast(([size]) => largest >= 1.5 * size) ?? TIMES[0];
    const base = unit === "bytes" ? 1024 : 1000, names = unit === "bytes" ? BYTES : COUNTS;
    let power = 0;
    while (largest >= 999.5 * base ** power && power < names.length - 1) power += 1;
    return [base ** power, names[power] + (unit === "macs" ? "MACs" : "")];
  }

  // As Python rounds: a half goes to the even digit, or the same number would read differently in a table.
  function fixed(value, digits) {
    const scaled = value * 10 ** digits, below = Math.floor(scaled);
    return scaled - below === 0.5 ? ((below + (below % 2)) / 10 ** digits).toFixed(digits) : value.toFixed(digits);
  }

  function format(value, unit, deviation = null) {
    if (value === null || value === undefined) return "–";
    const spread = (digits, size) => (deviation === null ? "" : ` ± ${fixed(deviation / size, digits)}`);
    if (unit === "percent") return `${fixed(100 * value, 1)}${spread(1, 0.01)} %`;
    if (unit === "number") {
      const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
      return deviation === null ? text : `${text} ± ${Number(deviation.toPrecision(2))}`;
    }
    const [size, name] = unitOf(Math.abs(value), unit);
    const scaled = value / size, digits = size === 1 || scaled >= 99.95 ? 0 : scaled >= 9.995 ? 1 : 2;
    return `${fixed(scaled, digits)} ${name}`.trim();
  }

  function niceStep(span, count) {
    const raw = span / Math.max(1, count), size = 10 ** Math.floor(Math.log10(raw));
    return size * ([1, 2, 5].find((digit) => digit * size >= raw * 0.999) ?? 10);
  }

  const decimals = (step) => Math.max(0, -Math.floor(Math.log10(step) + 1e-9));

  // The ticks of an axis at round numbers; every label is different, as it has the digits that the step needs.
  function linearTicks(low, high, size, count, whole) {
    let step = niceStep((high - low) / size, count);
    if (whole) step = Math.max(1, step);
    const ticks = [];
    for (let n = Math.ceil(low / size / step - 1e-9); n * step <= high / size + 1e-9 * step; n += 1) {
      const value = n * step;
      const text = Math.abs(value) >= 10000 ? value.toLocaleString("en-US") : value.toFixed(decimals(step));
      ticks.push({ value: value * size, text });
    }
    return ticks;
  }

  function logTicks(low, high, size, count) {
    const inside = (digits) => {
      const values = [];
      for (let power = Math.floor(Math.log10(low / size)); power <= Math.ceil(Math.log10(high / size)); power += 1) {
        for (const digit of digits) values.push(digit * 10 ** power * size);
      }
      return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    };
    let values = [[1, 2, 5], [1, 3], [1]].map(inside).find((list) => list.length <= count) ?? inside([1]);
    while (values.length > count && values.length > 2) values = values.filter((_, place) => place % 2 === 0);
    const linear = linearTicks(low, high, size, count, false);
    const ticks = (values.length < 3 ? linear.map(({ value }) => value) : values).map((value) => ({ value, text: compact(value / size) }));
    return new Set(ticks.map(({ text }) => text)).size === ticks.length ? ticks : linear; // three digits may not tell them apart
  }

  function compact(value) {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (value >= size) return `${Number((value / size).toPrecision(3))}${letter}`;
    }
    return String(Number(value.toPrecision(3)));
  }

  // An axis over pixels from `start` to `end`; `unit` is empty or the unit of its ticks, for the title.
  function axis({ low, high, unit, log, start, end, gap, whole = false }) {
    const count = Math.max(2, Math.floor(Math.abs(end - start) / gap));
    const counted = unit === "count" || unit === "number";
    const [size, name] = log && counted ? [1, ""] : unitOf(log ? Math.sqrt(low * high) : Math.max(Math.abs(low), Math.abs(high)), unit);
    const ticks = log ? logTicks(low, high, size, count) : linearTicks(low, high, size, count, whole);
    const at = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
    return { ticks, unit: name, place: (value) => start + at(value) * (end - start) };
  }

  const SHAPES = {
    circle: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    square: (r) => `M${-0.88 * r},${-0.88 * r}h${1.76 * r}v${1.76 * r}h${-1.76 * r}Z`,
    diamond: (r) => `M0,${-1.25 * r}L${1.25 * r},0L0,${1.25 * r}L${-1.25 * r},0Z`,
    triangle: (r) => `M0,${-1.2 * r}L${1.15 * r},${0.85 * r}L${-1.15 * r},${0.85 * r}Z`,
  };

  // A point: filled, or hollow with the card's colour inside.
  function symbol(look, radius, colour = look.colour) {
    const style = `fill: ${look.hollow ? "var(--card)" : colour}; stroke: ${colour}`;
    return svg("path", { d: SHAPES[look.symbol](radius), style, "stroke-width": look.hollow ? 1.8 : 1, "stroke-linejoin": "round" });
  }

  const mixed = (colour, share) => (share >= 1 ? colour : `color-mix(in srgb, ${colour} ${Math.round(100 * share)}%, var(--card))`);

  const pen = document.createElement("canvas").getContext("2d");
  function textWidth(text, weight = 400) {
    pen.font = `${weight} 12px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  }

  return { axis, format, html, mixed, symbol, svg, textWidth, unitOf };
})();
