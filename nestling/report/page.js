"use strict";
(() => {
  const { figures, measures } = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches; // a finger on a plot scrolls the page
  const hidden = new Set();
  let measure = Object.keys(measures)[0];
  let printing = false;

  // Before printing, styles are still those of the screen.
  const paper = { "--ink": "#000", "--soft": "#444", "--grid": "#e6e6e6", "--card": "#fff", "--line": "#ccc" };
  const colour = (name) => (printing && paper[name]) || getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axesOf = (layout) => Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));

  // Whatever a figure left open is given by the page.
  function dressed(layout) {
    const ink = colour("--ink"), soft = colour("--soft"), grid = colour("--grid");
    const full = {
      margin: { l: 52, r: 12, t: 8, b: 46 }, autosize: true, showlegend: false, dragmode: touch ? false : "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", ...layout,
      font: { family: colour("--text"), size: 12, color: soft },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: ink, family: colour("--text") }, namelength: -1 },
    };
    for (const key of axesOf(full)) {
      full[key] = {
        automargin: true, zeroline: false, fixedrange: touch, ...full[key],
        gridcolor: grid, linecolor: grid, tickcolor: grid, title: { standoff: 10, ...full[key].title },
      };
    }
    return full;
  }

  function draw() {
    for (const plot of plots) {
      const { data, layout, height } = figures[plot.dataset.figure];
      const full = dressed(layout);
      const chooses = data.some((trace) => trace.meta?.measure);
      const shown = data.map((trace) => {
        const { experiment, measure: own } = trace.meta ?? {};
        return { ...trace, visible: !hidden.has(experiment) && (!own || own === measure) };
      });
      if (chooses && measures[measure]) {
        const { title: text, share } = measures[measure];
        full.yaxis = { ...full.yaxis, title: { text, standoff: 10 }, tickformat: share ? ".1~%" : "", hoverformat: share ? ".1%" : ".4~g" };
      }
      if (printing) Object.assign(full, { autosize: false, width: plot.closest(".wide") ? 640 : 300, height: height ?? 250 });
      Plotly.react(plot, shown, full, { displaylogo: false, responsive: true, displayModeBar: false });
    }
    for (const part of document.querySelectorAll("[data-experiment]:not(button)")) {
      part.classList.toggle("off", hidden.has(Number(part.dataset.experiment)));
    }
    for (const button of buttons) button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.experiment))));
  }

  const buttons = [...document.querySelectorAll(".legend button")];
  const numbers = buttons.map((button) => Number(button.dataset.experiment));
  for (const button of buttons) {
    const own = Number(button.dataset.experiment);
    button.addEventListener("click", (event) => {
      if (event.detail > 1) return; // the second click of two belongs to dblclick
      hidden.has(own) ? hidden.delete(own) : hidden.add(own);
      draw();
    });
    button.addEventListener("dblclick", () => {
      const alone = numbers.every((number) => number === own || hidden.has(number));
      hidden.clear();
      if (!alone) for (const number of numbers) if (number !== own) hidden.add(number);
      draw();
    });
  }

  const choice = document.querySelector(".choice");
  choice?.addEventListener("change", () => { measure = choice.value; draw(); });

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const source = button.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch { // some browsers give pages on disk no clipboard: select, so that Ctrl+C copies
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
        return;
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  dark.addEventListener("change", draw);
  addEventListener("beforeprint", () => { printing = true; draw(); });
  addEventListener("afterprint", () => { printing = false; draw(); });
  draw();
})();
