"use strict";
// Tables that sort by a column and download as CSV.
const Tables = (() => {
  const { html } = Draw;

  function draw(table, page, folded) {
    const { column = -1, down = true } = page.sorting(table.name);
    const heads = table.columns.map(({ title, side }, place) => {
      const sorted = place === column ? (down ? "descending" : "ascending") : null;
      const sort = () => page.sort(table.name, place, sorted ? !down : side === "right");
      return html("th", { scope: "col", "aria-sort": sorted, class: side },
        html("button", { type: "button", "data-key": `${table.name}-${place}`, title: "Sort by this column", onclick: sort }, title, html("span", { class: "arrow" }, sorted ? (down ? " ↓" : " ↑") : "")));
    });
    const rows = ordered(table, column, down).map(({ experiment, cells }) => html("tr", { "data-experiment": experiment },
      cells.map((cell, place) => (place === 0
        ? html("th", { scope: "row", title: cell.text }, page.named(experiment))
        : html("td", { class: table.columns[place].side, "data-value": cell.value }, cell.best ? html("strong", {}, cell.text) : cell.text)))));
    const download = html("button", { type: "button", class: "small", "data-key": `${table.name}-csv`, onclick: () => save(`${table.name}.csv`, csv(table)) }, "CSV");
    const content = [
      table.about && html("p", { class: "about" }, table.about),
      html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title },
        html("table", { class: "data" }, html("thead", {}, html("tr", {}, heads)), html("tbody", {}, rows))),
      table.note && html("p", { class: "note" }, table.note)];
    const title = html("h3", {}, table.title);
    if (table.section === "details") return folded(`table ${table.name}`, { class: "card" }, html("summary", {}, title), html("div", { class: "heading" }, content.shift(), download), content);
    return html("section", { class: "card" }, html("div", { class: "heading" }, title, download), content);
  }

  function ordered(table, column, down) {
    if (column < 0 || column >= table.columns.length) return table.rows;
    const way = down ? -1 : 1;
    return [...table.rows].sort((one, other) => {
      const [a, b] = [one.cells[column], other.cells[column]];
      const missing = (a.text === "–") - (b.text === "–"); // what was not measured is last, either way
      if (missing) return missing;
      if (a.value !== null && b.value !== null) return way * (a.value - b.value);
      return way * a.text.localeCompare(b.text);
    });
  }

  // Numbers with all their digits; texts that a spreadsheet would take for a formula get an apostrophe.
  function csv(table) {
    const field = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const harmless = (text) => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);
    const lines = table.rows.map(({ cells }) => cells.map(({ text, value }, place) =>
      (table.columns[place].side === "right" ? String(value ?? "") : field(harmless(text)))));
    return [table.columns.map(({ title }) => field(title)), ...lines].map((line) => line.join(",")).join("\r\n") + "\r\n";
  }

  function save(name, text) {
    const link = html("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  return { draw, csv };
})();
