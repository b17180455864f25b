// What runs do now, above the page: events of `nestling watch` (server-sent), reconnected with growing pauses.
// A tab that is hidden disconnects, as browsers allow few connections to one server; it catches up when it is shown.
(function () {
  "use strict";
  const FIRST_PAUSE = 1000, LONGEST_PAUSE = 30000, NOTE_TIME = 15000; // milliseconds
  const root = document.getElementById("nestling-live");
  let version = JSON.parse(document.getElementById("nestling-data").textContent).version || "";
  let source = null, retry = null, pause = FIRST_PAUSE, retryAt = 0;
  let live = null, connected = false, shown = null;
  const states = new Map(); // run → the last state that was seen
  const notes = []; // what has just happened: [text, until]

  const style = document.createElement("style");
  style.textContent = `
    .live { padding-top: 1rem; }
    .live > .card { padding: .9rem 1.2rem 1rem; }
    .live p { margin: 0; }
    .live-status { display: flex; flex-wrap: wrap; gap: .2rem .7rem; align-items: baseline; font-weight: 600; }
    .live-status small { color: var(--soft); font-size: .875rem; font-weight: 400; }
    .live-dot { flex: none; align-self: center; width: .6rem; height: .6rem; border-radius: 50%; background: var(--soft); }
    .live-dot.on { background: #1a9d55; animation: live-pulse 2s ease-in-out infinite; }
    .live-dot.lost { background: #d9480f; }
    @keyframes live-pulse { 50% { opacity: .35; } }
    @media (prefers-reduced-motion: reduce) { .live-dot.on { animation: none; } }
    .live-run { border-top: 1px solid var(--line); margin-top: .8rem; padding-top: .75rem; }
    .live-head { display: flex; flex-wrap: wrap; gap: .1rem .8rem; justify-content: space-between; font-size: .9375rem; }
    .live-head b { font-weight: 620; overflow-wrap: anywhere; }
    .live-head span, .live-facts { color: var(--soft); font-variant-numeric: tabular-nums; }
    .live-bar { height: .45rem; margin: .4rem 0 .5rem; border-radius: 99px; background: var(--grid); overflow: hidden; }
    .live-bar i { display: block; height: 100%; border-radius: inherit; background: var(--accent); transition: width .4s; }
    .live-facts { font-size: .875rem; }
    .live .live-now { margin-top: .5rem; }
    .live-levels { display: flex; flex-wrap: wrap; gap: .4rem; margin: .55rem 0 0; padding: 0; list-style: none; font-size: .85rem; }
    .live-levels li { border: 1px solid var(--line); border-radius: 9px; padding: .2rem .6rem; font-variant-numeric: tabular-nums; }
    .live-levels b { margin-right: .45em; }
    .live-levels small { color: var(--soft); margin-left: .5em; }
    .live details { margin-top: .7rem; font-size: .875rem; }
    .live summary { cursor: pointer; color: var(--soft); }
    .live ol { margin: .4rem 0 0; padding: 0; list-style: none; max-height: 14rem; overflow: auto; }
    .live ol li { padding: .2rem 0; overflow-wrap: anywhere; }
    .live ol small { color: var(--soft); margin-right: .6em; }
    .live ol .warning::before { content: "⚠ "; color: #c77700; }`;
  document.head.append(style);

  function make(tag, name, text, ...children) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text) element.textContent = text;
    element.append(...children);
    return element;
  }

  function duration(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  }

  // Elapsed and remaining time of a progress.json, which may be some seconds old: an estimate that has passed is not shown.
  function times(progress) {
    const age = Math.max(0, Date.now() / 1000 - progress.updated), left = (progress.left ?? 0) - age;
    return duration(progress.seconds + age) + (left < 1 ? "" : `, about ${duration(left)} left`);
  }

  function plural(count, word) { return `${count} ${word}${count === 1 ? "" : "s"}`; }

  function status() {
    if (!connected) {
      const wait = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
      const text = retryAt ? "Connection lost" : "Connecting …";
      return ["lost", text, retryAt ? `trying again${wait ? ` in ${wait} s` : " …"}; the figures may be old` : ""];
    }
    const counts = live ? live.counts : { running: 0, finished: 0, stopped: 0 };
    const overall = live && live.overall;
    const parts = [];
    if (overall) parts.push(`${overall.finished} of ${plural(overall.runs, "run")} finished`, times(overall));
    else if (counts.finished && counts.running + counts.stopped) parts.push(`${plural(counts.finished, "run")} finished`);
    if (overall && overall.failed) parts.push(`${overall.failed} failed`);
    if (counts.stopped) parts.push(`${counts.stopped} stopped`);
    if (counts.running || overall) {
      return ["on", counts.running > 1 ? `${counts.running} runs are running` : counts.running ? "Running" : "Between two runs", parts.join(" · ")];
    }
    if (counts.stopped) return ["", counts.stopped === 1 && !counts.finished ? "The run is stopped" : "Stopped", [...parts, "nestling resume goes on"].join(" · ")];
    if (counts.finished) return ["", counts.finished === 1 ? "The run is finished" : `All ${counts.finished} runs are finished`, parts.join(" · ")];
    return ["", "No run has begun here yet", "this page follows as soon as one does"];
  }

  function doing(progress) {
    const { phase, clients } = progress;
    if (phase !== "training" || !clients.jobs) return phase;
    return clients.done >= clients.jobs ? "merging" : `training, ${clients.done} of ${plural(clients.jobs, "client")} done`;
  }

  // Levels are letters, the largest first, or shares of the model.
  function largestFirst(one, other) { return other - one || one.localeCompare(other); }

  function runElement(run) {
    const progress = run.progress;
    const next = Math.min(progress.round + 1, progress.rounds);
    const facts = [`round ${next} of ${progress.rounds}`, doing(progress), times(progress)];
    if (run.value) facts.splice(1, 0, `${run.metric} ${run.value}`);
    if (run.sent) facts.push(`${run.sent} sent`);
    const fill = make("i");
    fill.style.width = `${(100 * progress.share).toFixed(1)}%`;
    const bar = make("div", "live-bar", "", fill);
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", run.name);
    bar.setAttribute("aria-valuenow", (100 * progress.share).toFixed(0));
    const head = make("div", "live-head", "", make("b", "", run.name), make("span", "", `${(100 * progress.share).toFixed(0)} %`));
    const element = make("div", "live-run", "", head, bar, make("p", "live-facts", facts.join(" · ")));
    const levels = make("ul", "live-levels");
    const scores = new Map((run.levels || []).map((level) => [level.name, level.value]));
    for (const name of [...new Set([...scores.keys(), ...Object.keys(progress.levels)])].sort(largestFirst)) {
      const jobs = progress.levels[name];
      const item = make("li", "", "", make("b", "", `level ${name}`), scores.get(name) ?? "");
      if (jobs) item.append(make("small", "", `${jobs.done}/${jobs.jobs} clients`));
      levels.append(item);
    }
    if (levels.childElementCount) element.append(levels);
    if (progress.training.length) {
      const who = progress.training.slice(0, 12).map((one) => `client ${one.client} (level ${one.level}, ${plural(one.samples, "sample")})`);
      const more = progress.clients.training - who.length;
      element.append(make("p", "live-facts live-now", `training now: ${who.join(", ")}${more > 0 ? ` and ${more} more` : ""}`));
    }
    return element;
  }

  function draw() {
    const [kind, text, more] = status();
    const now = Date.now();
    while (notes.length && notes[0][1] < now) notes.shift();
    const line = make("p", "live-status", "", make("span", `live-dot ${kind}`), text);
    line.setAttribute("role", "status");
    for (const part of [more, ...notes.map(([note]) => note)]) if (part) line.append(make("small", "", part));
    const card = make("div", "card", "", line);
    for (const run of live ? live.runs : []) if (run.progress) card.append(runElement(run));
    const events = live ? live.events : [];
    if (events.length) {
      const list = make("ol");
      for (const event of events) {
        const item = make("li", event.level === "WARNING" ? "warning" : "", "");
        item.append(make("small", "", `${event.run}${event.round ? `, round ${event.round}` : ""}`), String(event.message));
        list.append(item);
      }
      const open = root.querySelector("details");
      const log = make("details", "", "", make("summary", "", `Log: ${plural(events.length, "event")}`), list);
      log.open = Boolean(open && open.open);
      card.append(log);
    }
    const section = make("section", "live", "", card);
    section.setAttribute("aria-label", "What runs do now");
    if (shown !== section.innerHTML) {
      shown = section.innerHTML;
      const scrolled = root.querySelector("ol")?.scrollTop ?? 0;
      root.replaceChildren(section);
      if (scrolled) root.querySelector("ol")?.scrollTo(0, scrolled);
    }
  }

  function note(text) { notes.push([text, Date.now() + NOTE_TIME]); }

  function follow(next) {
    for (const run of next.runs) {
      const before = states.get(run.name);
      if (before && before !== run.state) {
        if (run.state === "running") note(`${run.name} was ${before === "stopped" ? "resumed" : "started again"}`);
        else note(`${run.name} has ${run.state === "finished" ? "finished" : "stopped"}`);
      }
      states.set(run.name, run.state);
    }
    live = next;
  }

  function connect() {
    clearTimeout(retry);
    source = new EventSource(`events?page=${encodeURIComponent(version)}`);
    source.addEventListener("open", () => { connected = true; pause = FIRST_PAUSE; draw(); });
    source.addEventListener("live", (event) => { follow(JSON.parse(event.data)); draw(); });
    source.addEventListener("page", (event) => {
      version = event.lastEventId;
      window.nestlingRender(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      disconnect();
      retryAt = Date.now() + pause;
      retry = setTimeout(connect, pause);
      pause = Math.min(2 * pause, LONGEST_PAUSE);
      draw();
    });
  }

  function disconnect() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
    connected = false;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect();
    else if (!source) { pause = FIRST_PAUSE; connect(); }
  });
  window.addEventListener("pagehide", disconnect); // a page that is kept for the back button connects when it is shown
  window.addEventListener("pageshow", (event) => { if (event.persisted && !source) connect(); });
  setInterval(() => { if (!document.hidden) draw(); }, 1000); // times go on, and notes end
  draw();
  if (!document.hidden) connect();
})();
