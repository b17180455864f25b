"use strict";
// Figures of lines: curves, sizes, step sizes. A figure is described in nestling/report/panels.py.
const Lines = (() => {
  const { axis, format, mixed, symbol, svg, textWidth } = Draw;
  const DASHES = "6 4", MOST_SYMBOLS = 40, NEAR = 48;

  const known = (value) => value !== null && value !== undefined;

  // The points of a series for the chosen axes, null where a line is interrupted.
  function pointsOf(series, x, y) {
    const xs = series.x[x.name] ?? [], ys = series.y[y.name] ?? [], spreads = series.deviation?.[y.name] ?? [];
    return xs.map((value, place) => {
      if (!known(value) || !known(ys[place]) || (x.log && value <= 0)) return null;
      return { x: value, y: ys[place], spread: spreads[place] ?? null, text: series.texts?.[place] ?? "" };
    });
  }

  function range(values, { log, margin, least = 0 }) {
    let low = Math.min(...values), high = Math.max(...values);
    if (log) return low === high ? [low / 1.6, high * 1.6] : [low * (low / high) ** margin, high * (high / low) ** margin];
    const pad = Math.max((high - low) * margin, (least - (high - low)) / 2, low === high ? Math.abs(low) * 0.05 || 0.5 : 0);
    return [low - pad, high + pad];
  }

  // Draw a figure of a given width. `page` knows how experiments look, what is hidden, and what the reader chose.
  function draw(figure, page, width, tall) {
    const { x, y } = page.chosen(figure);
    const lines = figure.series
      .filter((series) => !page.isHidden(figure, series))
      .map((series) => {
        const look = page.look(series.experiment), points = pointsOf(series, x, y);
        const name = series.name ?? look.name;
        return { look, points, name, colour: mixed(look.colour, series.shade ?? 1), ink: (series.shade ?? 1) < 1 ? "var(--soft)" : look.colour, there: points.filter(known) };
      })
      .filter((line) => line.there.length);
    const height = Math.round(tall ? Math.max(300, Math.min(460, width * 0.62)) : Math.max(250, Math.min(380, width * 0.6)));
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "lines", role: "img", "aria-label": page.spoken(figure, lines, x, y) });
    if (!lines.length) {
      picture.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "soft" }, page.nothing(figure, y)));
      return picture;
    }

    const all = lines.flatMap((line) => line.there);
    const ys = all.flatMap(({ y: value, spread }) => [value - (spread ?? 0), value + (spread ?? 0)]);
    const logY = y.unit === "number" && Math.min(...ys) > 0 && Math.max(...ys) > 20 * Math.min(...ys);
    let [lowY, highY] = range(ys, { log: logY, margin: 0.07, least: y.unit === "percent" ? 0.02 : 0 });
    if (y.unit === "percent" && Math.max(...ys) <= 1) highY = Math.min(highY, 1.004);
    if (y.unit === "percent" && Math.min(...ys) >= 0) lowY = Math.max(lowY, 0);
    const xs = all.map((point) => point.x);
    let [lowX, highX] = range(xs, { log: x.log, margin: 0.03 });
    if (!x.log && Math.min(...xs) >= 0 && Math.min(...xs) < 0.2 * Math.max(...xs) && !figure.names) lowX = 0;

    // Names beside the ends of lines, where there is room for all of them.
    const names = lines.map((line) => textWidth(line.name, 600));
    const named = width >= 620 && lines.length > 1 && lines.length <= 14 && Math.max(...names) <= Math.min(260, 0.25 * width);
    const top = 30, bottom = height - 44, right = width - (named ? Math.max(...names) + 26 : 12);
    const vertical = axis({ low: lowY, high: highY, unit: y.unit, log: logY, start: bottom, end: top, gap: 40 });
    const left = 14 + Math.max(...vertical.ticks.map((tick) => textWidth(tick.text)));
    const whole = x.name === "round" || Boolean(figure.names);
    const horizontal = axis({ low: lowX, high: highX, unit: x.unit, log: x.log, start: left, end: right, gap: width < 500 ? 52 : 68, whole });
    const few = [...new Set(xs)].sort((one, other) => one - other);
    if (whole && few.length <= Math.min(6, (right - left) / 52)) horizontal.ticks = few.map((value) => ({ value, text: String(value) }));

    for (const { value, text } of vertical.ticks) {
      const at = vertical.place(value);
      picture.append(svg("line", { x1: left, x2: right, y1: at, y2: at, class: "grid" }));
      picture.append(svg("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, text));
    }
    let end = -Infinity;
    for (const { value, text } of horizontal.ticks) {
      const at = horizontal.place(value), half = textWidth(text) / 2;
      picture.append(svg("line", { x1: at, x2: at, y1: bottom, y2: bottom + 5, class: "tick" }));
      if (at - half < end + 6) continue; // it would touch the label before it
      end = at + half;
      picture.append(svg("text", { x: at, y: bottom + 19, "text-anchor": "middle" }, text));
    }
    picture.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "tick" }));
    picture.append(svg("text", { x: 2, y: 13, class: "title" }, titled(y, vertical.unit, logY)));
    picture.append(svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "title" }, titled(x, horizontal.unit, false)));

    const at = (point) => [horizontal.place(point.x), vertical.place(point.y)];
    for (const line of lines) drawLine(picture, line, { at, vertical, left, right, guides: figure.guides, errors: figure.errors });
    if (named) nameEnds(picture, lines, { at, right, top, bottom, guides: figure.guides });
    follow(picture, lines, { at, page, x, y, width });
    return picture;
  }

  function titled(shown, unit, log) {
    const better = shown.better < 0 ? ", lower is better" : "";
    return `${shown.title}${unit ? ` (${unit})` : ""}${log ? ", logarithmic" : ""}${better}`;
  }

  function drawLine(picture, line, { at, vertical, left, right, guides, errors }) {
    const { look, colour, points, there } = line;
    const spreads = there.some((point) => point.spread);
    if (guides && there.length === 1) {
      const y = at(there[0])[1];
      picture.append(svg("line", { x1: left, x2: right, y1: y, y2: y, style: `stroke: ${colour}`, class: "guide" }));
    }
    const edge = (point, way) => `${at(point)[0].toFixed(1)},${vertical.place(point.y + way * (point.spread ?? 0)).toFixed(1)}`;
    for (const stretch of stretches(points)) {
      if (spreads && !errors && stretch.length > 1) {
        const around = [...stretch.map((point) => edge(point, 1)), ...stretch.toReversed().map((point) => edge(point, -1))];
        picture.append(svg("polygon", { points: around.join(" "), style: `fill: ${colour}`, class: "band" }));
      }
      const path = stretch.map((point) => at(point).map((value) => value.toFixed(1)).join(",")).join(" ");
      const style = `stroke: ${colour}`;
      picture.append(svg("polyline", { points: path, style, class: "line", "stroke-dasharray": look.hollow ? DASHES : null }));
    }
    if (spreads && errors) {
      for (const point of there.filter((one) => one.spread)) {
        const [x] = at(point), [low, high] = [-1, 1].map((way) => vertical.place(point.y + way * point.spread));
        picture.append(svg("path", { d: `M${x},${low}V${high}M${x - 4},${low}h8M${x - 4},${high}h8`, style: `stroke: ${colour}`, class: "error" }));
      }
    }
    const dense = there.length > MOST_SYMBOLS;
    for (const point of dense ? [there.at(-1)] : there) {
      const mark = symbol(look, there.length === 1 ? 6 : 4.2, colour);
      mark.setAttribute("transform", `translate(${at(point).join(" ")})`);
      picture.append(mark);
    }
  }

  function stretches(points) {
    const result = [[]];
    for (const point of points) point === null ? result.push([]) : result.at(-1).push(point);
    return result.filter((stretch) => stretch.length);
  }

  function nameEnds(picture, lines, { at, right, top, bottom, guides }) {
    const ends = lines.map((line) => {
      const last = line.there.reduce((one, other) => (other.x >= one.x ? other : one));
      const [x, y] = at(last);
      return { line, from: [guides && line.there.length === 1 ? right : x + 7, y], y };
    });
    ends.sort((one, other) => one.y - other.y);
    ends.forEach((end, place) => { if (place) end.y = Math.max(end.y, ends[place - 1].y + 15); });
    let floor = bottom + 6;
    for (const end of ends.toReversed()) {
      end.y = Math.max(top, Math.min(end.y, floor));
      floor = end.y - 15;
    }
    for (const { line, from, y } of ends) {
      const d = `M${from.join(",")}L${right + 8},${y}`;
      picture.append(svg("path", { d, style: `stroke: ${line.colour}`, class: "leader" }));
      picture.append(svg("text", { x: right + 12, y: y + 4, class: "name", style: `fill: ${line.ink}` }, line.name));
    }
  }

  // Show the values of the nearest point.
  function follow(picture, lines, { at, page, x, y, width }) {
    const spots = lines.flatMap((line) => line.there.map((point) => ({ line, point, at: at(point) })));
    const ring = svg("circle", { r: 8, class: "ring", visibility: "hidden" });
    picture.append(ring);
    const leave = () => { ring.setAttribute("visibility", "hidden"); page.tip(null); };
    const move = (event) => {
      const box = picture.getBoundingClientRect(), scale = width / box.width;
      const place = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      const far = (spot) => Math.hypot(spot.at[0] - place[0], spot.at[1] - place[1]);
      const nearest = spots.reduce((one, other) => (far(other) < far(one) ? other : one));
      if (far(nearest) > NEAR) return leave();
      ring.setAttribute("visibility", "visible");
      ring.setAttribute("cx", nearest.at[0]);
      ring.setAttribute("cy", nearest.at[1]);
      ring.setAttribute("style", `stroke: ${nearest.line.colour}`);
      const { line, point } = nearest;
      const where = x.unit === "number" ? `${x.title} ${format(point.x, x.unit)}` : format(point.x, x.unit) + (x.unit === "count" ? ` ${x.title}` : "");
      return page.tip(event, [[line.name, line.look.colour], `${format(point.y, y.unit, point.spread)} ${y.title}`, point.text ? `${point.text} · ${where}` : where]);
    };
    picture.addEventListener("pointermove", move);
    picture.addEventListener("pointerdown", move);
    picture.addEventListener("pointerleave", leave);
  }

  return { draw };
})();
