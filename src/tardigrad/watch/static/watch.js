"use strict";
/* The live page: takes the panels that the server sends and puts them into the page. Text of runs and clients
 * is only ever set as text, never as HTML. */
(() => {
  const $ = (id) => document.getElementById(id);
  const AXES = { trips: "client trips", time: "time", bytes: "megabytes sent" };
  const drawn = {}, state = { run: 0, over: "trips", sort: "trips", down: true, page: 0, search: "" };
  const seen = {};
  let stream = null;

  // -- numbers and elements -----------------------------------------------------------------------

  const { number, percent } = charts;
  const known = (value) => value !== null && value !== undefined;
  const fixed = (value, digits) => (known(value) ? value.toLocaleString("en-US",
    { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "–");
  const whole = (value) => fixed(value, 0);
  const shown = (value, isPercent) => (known(value) ? (isPercent ? percent(value) : number(value)) : "–");

  function bytes(value) {
    if (!known(value)) return "–";
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
    return `${fixed(value, at ? 1 : 0)} ${units[at]}`;
  }

  function duration(seconds) {
    if (!known(seconds) || !Number.isFinite(seconds)) return "–";
    const all = Math.round(seconds), days = Math.floor(all / 86400);
    const hours = Math.floor(all / 3600) % 24, minutes = Math.floor(all / 60) % 60;
    if (days) return `${days} d ${hours} h`;
    if (hours) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
    return minutes ? `${minutes} min ${String(all % 60).padStart(2, "0")} s` : `${all} s`;
  }

  function make(tag, text, name) {
    const element = document.createElement(tag);
    if (known(text)) element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  const row = (cells) => {
    const line = document.createElement("tr");
    line.append(...cells);
    return line;
  };

  function chart(id, spec) {
    const element = document.querySelector(`#${id} .plot`);
    if (drawn[id]) drawn[id].update(spec);
    else drawn[id] = charts.draw(element, spec);
  }

  // -- panels -------------------------------------------------------------------------------------

  function tile(name, value, note) {
    const box = make("div");
    box.append(make("dt", name), make("dd", value), make("dd", note || ""));
    return box;
  }

  let told = "";
  function why(found) {
    const since = (one) => (known(one.since) ? `for ${duration(one.since)}` : "");
    const key = JSON.stringify(found.map((one) => [one.severity, one.sentence, one.remedy]));
    if (key !== told) { // only new words are read out by a screen reader
      told = key;
      $("why").replaceChildren(...found.map((one) => {
        const item = make("li"), time = make("span", since(one), "muted");
        item.dataset.severity = one.severity;
        time.setAttribute("aria-hidden", "true");
        item.append(make("b", one.sentence), time, make("div", one.remedy));
        return item;
      }));
    }
    found.forEach((one, at) => { $("why").children[at].querySelector("span").textContent = since(one); });
  }

  const STATES = { reading: "reading", waiting: "waiting", running: "running", over: "over", failed: "failed", silent: "silent" };

  function facts(one) {
    if (!one) {
      $("note").textContent = "No run is there yet; the page shows it as soon as it begins.";
      return;
    }
    $("title").textContent = one.name;
    document.title = `${one.name}: ${whole(one.trips)} trips`;
    document.body.classList.toggle("served", one.served);
    document.body.classList.toggle("progress", one.progress_only);
    why(one.explanations);
    const stuck = one.state === "running" && one.explanations.some((each) => each.severity === "error");
    $("state").dataset.state = stuck ? "silent" : one.state;
    $("state").textContent = one.state === "over" ? `over: ${one.reason}` : stuck ? "stuck" : STATES[one.state];
    const notes = [];
    if (one.algorithm) notes.push(one.algorithm);
    if (known(one.seed) && !one.served) notes.push(`seed ${one.seed}`);
    if (one.state === "reading") notes.push(`reading the events: ${fixed(100 * one.reading, 0)} %`);
    if (one.state === "silent") notes.push(one.problem || `nothing was heard for ${duration(one.silence)}`);
    if (one.progress_only) notes.push("the key is a client's, which sees the progress; an operator's key shows uploads and clients, too");
    if (one.damaged) notes.push(`${whole(one.damaged)} lines of the events cannot be read`);
    if (known(one.helper_away)) notes.push(`the helper is away since ${duration(one.helper_away)}`);
    $("note").textContent = notes.join(" · ") || "\u00a0";
    const left = one.left;
    const limit = left.rule ? `${left.rule} ${number(left.limit)}` : "no limit is known";
    const tiles = [
      tile("version", whole(one.version), known(one.accepted) ? `${whole(one.accepted)} uploads counted` : ""),
      tile("trips", whole(one.trips), left.rule === "trips" ? `of ${whole(left.limit)}` : ""),
      tile("trips a second", fixed(one.rate, 1), "in the last 30 s"),
      tile("time left", one.state === "over" ? "0 s" : duration(left.seconds), limit),
    ];
    const told = Object.entries(one.metrics);
    for (const at of [0, 1]) { // always as many tiles, so that nothing jumps
      const [name, [value, isPercent]] = told[at] || [["metric", "loss"][at], [null, false]];
      tiles.push(tile(name, shown(value, isPercent), known(value) ? "last evaluation" : "not evaluated yet"));
    }
    tiles.push(
      tile(one.served ? "time served" : "virtual time", one.served ? duration(one.time) : fixed(one.time, 2), ""),
      tile("buffer", known(one.buffer) ? `${one.fill} / ${one.buffer}` : whole(one.fill), "uploads in it"),
      tile("staleness", fixed(one.staleness, 2), "mean of the run"),
      tile("clients", whole(one.clients), "had a trip"),
      tile("refused", whole(one.refused), "uploads"),
      known(one.in_flight) ? tile("at work", whole(one.in_flight), `${whole(one.waiting)} wait for a task`)
        : tile("sent", bytes(one.bytes), "both ways"));
    $("tiles").replaceChildren(...tiles);
    $("done").style.width = `${100 * (left.done || 0)}%`;
  }

  function curves(one) {
    if (!one) return;
    const x = one.over[state.over], names = Object.keys(one.metrics);
    const main = names.find((name) => name !== "loss") || names[0];
    const of = (name) => ({ kind: "lines", x: AXES[state.over], y: one.words[name] || "",
      percent: one.percent.includes(name), whole: state.over === "trips",
      lines: [{ label: one.words[name] || "none yet", x, y: one.metrics[name] || x.map(() => null),
        colour: name === "loss" ? 1 : 0 }] });
    $("metric-title").textContent = `${(one.words[main] || "metric").replace(/^./, (c) => c.toUpperCase())}${one.by_clients ? ", on clients" : ""}`;
    chart("metric", of(main || "accuracy"));
    chart("loss", of("loss"));
  }

  function uploads(one) {
    if (!one) return;
    chart("fill", { kind: "lines", stepped: true, zero: true, whole: true, x: "client trips", y: "uploads",
      lines: [{ label: "in the buffer", x: one.fill.trips, y: one.fill.fill, colour: 2 }] });
    chart("staleness", { kind: "bars", percent: true, whole: true, wide: one.staleness.wide,
      x: "staleness (versions)", y: "share",
      lines: [{ label: "share", x: one.staleness.at, y: one.staleness.share, colour: 0 }] });
    chart("weights", { kind: "bars", percent: true, wide: one.weights.wide, x: "weight", y: "share",
      lines: [{ label: "share", x: one.weights.at, y: one.weights.share, colour: 4 }] });
  }

  function trips(one) {
    if (one) chart("trips", { kind: "trips", x: "time", y: "trips", height: 320, trips: one.trips, steps: one.steps });
  }

  function refusals(one) {
    if (!one) return;
    const rows = one.rows.map((each) =>
      row([make("td", each.what), make("td", each.reason), make("td", whole(each.count))]));
    if (!rows.length) {
      const counted = known(one.accepted) ? `: ${whole(one.accepted)} of ${whole(one.trips)} uploads counted` : "";
      const cell = make("td", `Nothing was refused${counted}.`, "words");
      cell.colSpan = 3;
      rows.push(row([cell]));
    }
    document.querySelector("#refusals tbody").replaceChildren(...rows);
  }

  function pairs(id, found) {
    $(id).replaceChildren(...found.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  }

  function privacy(one) {
    if (!one) return;
    if (!one.private) {
      pairs("privacy", [["promise", one.known ? "none: no noise is added in this run" : "not told by this server"]]);
      return;
    }
    pairs("privacy", [["epsilon spent", number(one.epsilon)],
      ...Object.entries(one.settings).map(([name, value]) => [name.replaceAll("_", " "),
        typeof value === "number" ? number(value) : String(value)])]);
  }

  function steps(one) {
    if (!one) return;
    document.body.classList.toggle("private", Boolean(one.epsilon));
    if (one.epsilon) {
      chart("epsilon", { kind: "lines", x: "version", y: "epsilon", whole: true, zero: true,
        lines: [{ label: "epsilon", x: one.version, y: one.epsilon, colour: 3 }] });
    }
  }

  function network(one) {
    if (!one) return;
    const found = [["sent, both ways", bytes(one.bytes)], ["a second", bytes(one.rate)], ["a trip", bytes(one.per_trip)]];
    for (const [name, value] of Object.entries(one.parts)) found.push([`${name}, mean time`, number(value)]);
    const names = { free: "free on disk", events: "events", snapshot: "snapshot", journal: "journal", files: "all files of the run" };
    for (const [name, value] of Object.entries(one.disk)) {
      if (value || name === "free") found.push([names[name], bytes(value)]);
    }
    pairs("network", found);
  }

  function log(lines) {
    if (!lines) return;
    const items = lines.map(([time, warning, text]) => {
      const item = make("li", null, warning ? "warning" : "");
      item.append(make("time", known(time) ? fixed(time, 2) : ""), make("span", text));
      return item;
    });
    $("log").replaceChildren(...items.reverse());
  }

  const COLOURS = 7; // --c0 to --c6
  const entries = (all) => [...new Set(all.map((one) => one.entry))];

  function runs(found) {
    document.body.classList.toggle("several", found.runs.length > 1);
    if (found.runs.length < 2) return;
    $("several-heading").textContent = `All runs (${found.runs.length}${found.unlisted ? ", and more that are not shown" : ""})`;
    const names = entries(found.runs), place = (one) => names.indexOf(one.entry);
    const listed = found.runs.map((one, at) => [one, at]); // the address of a run is its place in the message
    listed.sort(([a], [b]) => place(a) - place(b) || (a.seed || 0) - (b.seed || 0));
    const rows = listed.map(([one, at]) => {
      const link = make("a", one.entry === one.name ? one.name : one.entry);
      link.href = `#${at}`;
      const name = make("td", null, "name");
      const mark = make("span", null, "mark");
      mark.style.background = `var(--c${place(one) % COLOURS})`;
      name.append(mark, link);
      const line = row([name, make("td", known(one.seed) ? one.seed : ""), make("td", one.state),
        make("td", whole(one.trips)), make("td", whole(one.version)), make("td", shown(one.value, one.percent))]);
      line.setAttribute("aria-selected", String(at === state.run));
      line.addEventListener("click", () => { location.hash = `#${at}`; });
      return line;
    });
    document.querySelector("#runs tbody").replaceChildren(...rows);
  }

  function compare(all) {
    if (!all || all.length < 2) return;
    const names = entries(all);
    const first = all.find((one) => Object.keys(one.metrics).length) || all[0];
    const main = Object.keys(first.metrics).find((name) => name !== "loss") || "loss";
    $("all-runs-title").textContent = `${first.words[main] || "metric"} of all runs`;
    chart("all-runs", { kind: "lines", x: AXES[state.over], y: first.words[main] || "", height: 320,
      percent: first.percent.includes(main), whole: state.over === "trips",
      lines: all.filter((one) => one.metrics[main]).map((one) => ({
        label: known(one.seed) ? `${one.entry}, seed ${one.seed}` : one.entry,
        x: one.over[state.over], y: one.metrics[main], colour: names.indexOf(one.entry) })) });
  }

  // -- clients ------------------------------------------------------------------------------------

  const COLUMNS = { client: "client", state: "state", trips: "trips", share: "share", staleness: "staleness", last: "last seen",
    given_up: "given up", refused: "refused", software: "software" };
  const UNSORTED = ["state", "software"]; // what the list is not sorted by

  function heads() {
    document.querySelector("#clients thead tr").replaceChildren(...Object.entries(COLUMNS).map(([name, words]) => {
      const head = make("th", UNSORTED.includes(name) ? words : null, name === "refused" || name === "software" ? "words" : "");
      head.hidden = name === "software" && !state.software;
      if (UNSORTED.includes(name)) return head;
      const button = make("button", words);
      button.type = "button";
      if (state.sort === name) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      button.addEventListener("click", () => {
        state.down = state.sort === name ? !state.down : name !== "client";
        state.sort = name;
        state.page = 0;
        heads();
        clients();
        document.querySelectorAll("#clients th")[Object.keys(COLUMNS).indexOf(name)].firstChild.focus();
      });
      head.append(button);
      return head;
    }));
  }

  let asked = 0;
  async function clients() {
    const mine = ++asked;
    const words = new URLSearchParams({ run: state.run, search: state.search, sort: state.sort,
      down: state.down ? "1" : "0", page: state.page });
    let found;
    try {
      const answer = await fetch(`/clients?${words}`);
      if (!answer.ok) return;
      found = await answer.json();
    } catch { return; }
    if (mine !== asked) return;
    state.page = found.page;
    $("found").textContent = state.search ? `${whole(found.found)} of ${whole(found.clients)}` : `${whole(found.clients)} clients`;
    $("page").textContent = `${found.page + 1} of ${found.pages}`;
    $("before").disabled = found.page === 0;
    $("after").disabled = found.page + 1 >= found.pages;
    const told = found.rows.some((one) => one.software) || (state.software && state.page > 0);
    if (told !== Boolean(state.software)) {
      state.software = told;
      heads();
    }
    const rows = found.rows.map((one) => {
      const name = make("td", one.client, "name");
      name.title = one.client;
      const reasons = Object.entries(one.refused).map(([reason, count]) => `${reason}: ${count}`).join(", ");
      const served = seen.facts && seen.facts.served;
      const now = known(one.at_work) ? `at work, v${one.at_work}` : served ? "idle" : "–";
      return row([name, make("td", now), make("td", whole(one.trips)), make("td", percent(one.share)), make("td", fixed(one.staleness, 2)),
        make("td", known(one.ago) ? `${duration(one.ago)} ago` : fixed(one.last, 2)), make("td", whole(one.given_up)),
        make("td", reasons || "–", "words"), ...(told ? [make("td", one.software || "–", "words")] : [])]);
    });
    if (!rows.length) {
      const cell = make("td", state.search ? "No client has such a name." : "No client is known by name.", "words");
      cell.colSpan = 9;
      rows.push(row([cell]));
    }
    document.querySelector("#clients tbody").replaceChildren(...rows);
  }

  // -- the stream ---------------------------------------------------------------------------------

  const PANELS = { runs, facts, curves, uploads, trips, refusals, privacy, steps, network, log, compare };

  function take(message) {
    const news = JSON.parse(message.data);
    for (const [name, show] of Object.entries(PANELS)) {
      if (name in news) {
        seen[name] = news[name];
        show(news[name]);
      }
    }
    document.documentElement.dataset.updates = String(Number(document.documentElement.dataset.updates || 0) + 1);
  }

  function open() {
    if (stream) stream.close();
    stream = new EventSource(`/events?run=${state.run}`);
    stream.addEventListener("message", take);
    stream.addEventListener("error", () => {
      $("state").dataset.state = "lost";
      $("state").textContent = "no connection";
    });
    clients();
  }

  function choose() {
    const wanted = Number.parseInt(location.hash.slice(1), 10);
    state.run = Number.isInteger(wanted) && wanted >= 0 ? wanted : 0;
    state.page = 0;
    open();
    if (seen.runs) runs(seen.runs);
  }

  for (const button of document.querySelectorAll(".turns button")) {
    button.addEventListener("click", () => {
      state.over = button.value;
      for (const one of document.querySelectorAll(".turns button")) one.setAttribute("aria-pressed", String(one === button));
      curves(seen.curves);
      compare(seen.compare);
    });
  }
  $("search").addEventListener("input", () => { state.search = $("search").value; state.page = 0; clients(); });
  $("before").addEventListener("click", () => { state.page -= 1; clients(); });
  $("after").addEventListener("click", () => { state.page += 1; clients(); });
  const repaint = () => Object.values(drawn).forEach((one) => one.repaint());
  $("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  addEventListener("hashchange", choose);
  const refresh = () => { if (!document.hidden) clients(); };
  setInterval(refresh, 2000);
  document.addEventListener("visibilitychange", refresh);
  heads();
  choose();
})();
