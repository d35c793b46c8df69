"use strict";
// The page of a proposal: the passes of an iteration, the plan that is looked at, its intervals.
(() => {
  const {CONFIG, DATA, colour, draw, pause, root, start, themed} = report;
  const KIND_COLOURS = {
    "forward": "--c0", "backward": "--c2", "backward of inputs": "--c2", "backward of weights": "--c6",
  };
  const TAIL_COLOURS = {gradients: "--c1", optimizer: "--c3", other: "--c9"};
  const SMALLEST_PX = 2.5;  // passes that would be narrower are drawn as one block with their neighbours
  const MOST_HINTS = 3000;

  // --- the passes of one iteration

  const decoded = (plan) => plan.ranks.map((rank) => {
    const index = Object.fromEntries(plan.letters.map((letter, number) => [letter, number]));
    const waits = new Map(rank.waits), count = new Map(), passes = [];
    const listed = new Map();
    const backward = (kind) => kind.startsWith("backward") && !kind.endsWith("weights") ? "backward" : kind;
    const key = (number) => `${backward(plan.kinds[number])} ${plan.chunks[number]}`;
    for (const letter of rank.passes) listed.set(key(index[letter]), (listed.get(key(index[letter])) ?? 0) + 1);
    let time = 0;
    [...rank.passes].forEach((letter, place) => {
      const number = index[letter], name = key(number), before = count.get(name) ?? 0;
      time += waits.get(place) ?? 0;
      const left_out = time >= plan.repeated_s[1] * (1 - 1e-9) ? plan.micro_batches - listed.get(name) : 0;
      passes.push({start: time, end: time += rank.seconds[number], number, batch: before + left_out});
      count.set(name, before + 1);
    });
    return passes;
  });

  const unitOf = (seconds) => seconds < 1 ? [1e-3, "ms"] : [1, "s"];

  // Rectangles of what lies between two times: passes wide enough to be seen one by one, blocks of the others.
  const rectangles = (plan, ranks, from, to, width) => {
    const second = width / (to - from), found = [];
    const add = (kind, rank, start, end, hint) => found.push({kind, rank, start, end, hint});
    ranks.forEach((passes, rank) => {
      let block = null;
      const flush = () => { if (block) add("passes, too short to tell apart", rank, block.start, block.end, `${block.count} passes`); block = null; };
      for (const pass of passes) {
        if (pass.end < from || pass.start > to) continue;
        if ((pass.end - pass.start) * second >= SMALLEST_PX) {
          flush();
          const chunk = plan.ranks.length > 1 && new Set(plan.chunks).size > 1 ? `, chunk ${plan.chunks[pass.number] + 1}` : "";
          add(plan.kinds[pass.number], rank, pass.start, pass.end, `${plan.kinds[pass.number]} of micro-batch ${pass.batch + 1}${chunk}`);
        } else {
          if (block && (pass.start - block.end) * second > 0.75) flush();
          block = block ? {...block, end: pass.end, count: block.count + 1} : {start: pass.start, end: pass.end, count: 1};
        }
      }
      flush();
      if (plan.repeated_s[1] > plan.repeated_s[0]) add("more of the same", rank, ...plan.repeated_s, "as before, for the other micro-batches");
      let at = plan.pipeline_s;
      for (const [name, seconds] of Object.entries(plan.tail_s)) {
        if (seconds > 1e-9 * plan.iteration_s) add(name, rank, at, at + seconds, name);
        at += seconds;
      }
    });
    return found;
  };

  const traces = (found, [factor, unit]) => {
    const byKind = new Map();
    for (const one of found) {
      if (!byKind.has(one.kind)) byKind.set(one.kind, {x: [], y: []});
      const {x, y} = byKind.get(one.kind);
      const [a, b, top, bottom] = [one.start / factor, one.end / factor, one.rank + 0.6, one.rank + 1.4];
      x.push(a, b, b, a, a, null);
      y.push(top, top, bottom, bottom, top, null);
    }
    const out = [...byKind].map(([kind, {x, y}]) => ({
      name: kind, x, y, mode: "lines", fill: "toself", line: {width: 0.6, color: colour("--paper"), simplify: false}, hoverinfo: "skip",
      fillcolor: colour(KIND_COLOURS[kind] ?? TAIL_COLOURS[kind] ?? "--c7"),
    }));
    const hints = found.length <= MOST_HINTS ? found : [];
    if (hints.length) out.push({
      x: hints.map((one) => (one.start + one.end) / 2 / factor), y: hints.map((one) => one.rank + 1), mode: "markers",
      marker: {size: 6, opacity: 0}, showlegend: false, hovertemplate: "%{text}<extra></extra>",
      text: hints.map((one) => `stage ${one.rank + 1}: ${one.hint}<br>${(one.start / factor).toPrecision(5)} to ${(one.end / factor).toPrecision(5)} ${unit}`),
    });
    return out;
  };

  const READABLE = 60;  // passes of a rank that are told apart in one picture
  const firstPart = (plan) => {  // of the iteration, that a plan's picture begins with
    const share = READABLE / Math.max(...plan.ranks.map((rank) => rank.passes.length));
    return share < 1 ? Math.max(share * (plan.repeated_s[1] > plan.repeated_s[0] ? plan.repeated_s[0] / plan.iteration_s : 1), 0.02) : 1;
  };
  let shown = null;  // the plan that is drawn
  const drawPasses = (letter, range) => {
    const place = document.getElementById("figure-passes"), plan = DATA.plans[letter].passes;
    if (shown?.letter !== letter) shown = {letter, plan, ranks: decoded(plan)};
    const unit = unitOf(plan.iteration_s), [from, to] = range ?? [0, plan.iteration_s * firstPart(plan)];
    const width = Math.max(place.clientWidth - 80, 300);
    const layout = {
      height: Math.max(190, Math.min(720, 120 + 20 * plan.ranks.length)), margin: {t: 30, r: 16, l: 50, b: 44},
      xaxis: {title: {text: `time, ${unit[1]}`}, range: [from / unit[0], to / unit[0]], zeroline: false},
      yaxis: {title: {text: "stage"}, range: [plan.ranks.length + 0.6, 0.4], fixedrange: true, zeroline: false, showgrid: false,
              dtick: Math.max(1, Math.ceil(plan.ranks.length / 16)), tick0: 1},
      legend: {orientation: "h", y: 1, yanchor: "bottom"}, dragmode: "zoom", hovermode: "closest",
    };
    return Plotly.react(place, traces(rectangles(plan, shown.ranks, from, to, width), unit), themed(layout), CONFIG);
  };
  const followZoom = () => document.getElementById("figure-passes").on("plotly_relayout", (change) => {
    if (!shown) return;
    const unit = unitOf(shown.plan.iteration_s)[0];
    if (change["xaxis.autorange"]) drawPasses(shown.letter, [0, shown.plan.iteration_s]);
    else if ("xaxis.range[0]" in change) {
      const [from, to] = [change["xaxis.range[0]"] * unit, change["xaxis.range[1]"] * unit];
      drawPasses(shown.letter, [Math.max(from, 0), Math.min(to, shown.plan.iteration_s)]);
    }
  });

  for (const button of document.querySelectorAll("button[data-part]")) button.addEventListener("click", () => {
    const whole = shown.plan.iteration_s, [from, to] = button.dataset.part.split(" ").map((share) => share * whole);
    drawPasses(shown.letter, [from, to]);
  });

  const selected = () => document.querySelector("input[name=plan]:checked").value;
  const drawPlan = async () => {
    const letter = selected(), plan = DATA.plans[letter];
    for (const node of document.querySelectorAll(".node")) node.hidden = node.dataset.plan !== letter;
    await drawPasses(letter);
    for (const id of ["power", "stages", "heat"]) await draw(id, plan[id]);
  };
  const drawAll = async () => {
    await draw("front", DATA.figures.front);
    showIntervals();
    root.dataset.drawn = "front";
    for (const id of ["time", "energy", "memory"]) { await pause(); await draw(id, DATA.figures[id]); }
    await pause();
    await drawPlan();
  };

  // --- controls

  const intervals = document.getElementById("intervals"), whole = document.getElementById("whole");
  const ROOM = 0.35;  // of the front's extent, on either side, that intervals are drawn in
  const showIntervals = () => {
    if (!intervals) return;
    const place = document.getElementById("figure-front"), {layout} = DATA.figures.front;
    const trace = place.data.findIndex((one) => one.meta === "intervals");
    if (trace < 0) return;
    whole.disabled = !intervals.checked;
    const around = ([low, high]) => intervals.checked ? [low - ROOM * (high - low), high + ROOM * (high - low)] : [low, high];
    const axes = intervals.checked && whole.checked
      ? {"xaxis.autorange": true, "yaxis.autorange": true}
      : {"xaxis.range": around(layout.xaxis.range), "yaxis.range": around(layout.yaxis.range)};
    Plotly.update(place, {visible: intervals.checked}, axes, [trace]);
  };
  for (const box of [intervals, whole]) box?.addEventListener("change", showIntervals);

  // --- the plan that limits and prices choose, of those that are stored

  const C = DATA.choice, KWH = 3.6e6, HOUR = 3600;
  const spans = () => {
    const kw = C.time_s.map((_, row) => siteJ(row) / C.time_s[row] / 1e3);
    const ends = (values) => [Math.min(...values), Math.max(...values)];
    const upTo = (name, usual) => [0, Math.max(usual, 2 * (C.given[name] ?? 0))];
    return {deadline: ends(C.time_s), kw: ends(kw), price_gpu: upTo("price_gpu", 10), price_kwh: upTo("price_kwh", 0.5), carbon: upTo("carbon", 1), price_carbon: [0, 300]};
  };
  const siteJ = (row) => (C.energy_j[row] * (1 + C.host_share) + C.host_w * C.time_s[row]) * C.pue;
  const digits = (value, count = 4) => Number(value.toPrecision(count)).toLocaleString("en", {maximumSignificantDigits: count});
  const signed = (value) => `${value < 0 ? "" : "+"}${value.toFixed(1)} %`;
  const percent = (value, base) => 100 * (value / base - 1);
  const moved = new Set();  // sliders that were moved
  const limits = () => {
    const found = {}, range = spans();
    for (const slider of document.querySelectorAll("#choice input")) {
      const [low, high] = range[slider.name], at = low + (high - low) * slider.value / 100;
      const given = moved.has(slider.name) ? null : C.given[slider.name] ?? null;  // as the job states it, exactly
      const most = given === null && (slider.name === "deadline" || slider.name === "kw") && slider.value === "100";
      found[slider.name] = given ?? (most ? Infinity : at);
      const unit = {deadline: " s", kw: " kW", price_gpu: ` ${C.currency}`, price_kwh: ` ${C.currency}`, carbon: " kg", price_carbon: ` ${C.currency}`}[slider.name];
      slider.previousElementSibling.textContent = most ? "(any)" : digits(found[slider.name], 3) + unit;
    }
    return found;
  };
  const best = (by) => {
    const rows = C.time_s.map((_, row) => row)
      .filter((row) => C.time_s[row] <= by.deadline * (1 + 1e-9) && siteJ(row) / C.time_s[row] / 1e3 <= by.kw * (1 + 1e-9));
    const stated = C.given.price_gpu !== null && C.given.price_kwh !== null && by.price_gpu + by.price_kwh > 0;
    const priced = by.price_gpu > 0 && by.price_kwh + by.carbon * by.price_carbon > 0 || stated;
    const paid = (row) => C.gpus * C.time_s[row] / HOUR * by.price_gpu
      + siteJ(row) / KWH * (by.price_kwh + by.carbon * by.price_carbon / 1e3);
    const free = by.deadline === Infinity && !priced, fastest = Math.min(...rows.map((row) => C.time_s[row]));
    const within = rows.filter((row) => !free || C.time_s[row] <= fastest * (1 + C.slower));
    const sure = within.filter((row) => C.fits[row] >= C.sure), score = priced ? paid : (row) => C.energy_j[row];
    const among = sure.length ? sure : within;
    return {row: among.reduce((a, b) => a === null || score(b) < score(a) ? b : a, null), priced, paid};
  };
  const choose = () => {
    const by = limits(), {row, priced, paid} = best(by), place = document.getElementById("chosen");
    place.dataset.row = row ?? "";
    if (row === null) { place.textContent = "No plan of the front keeps these limits."; return; }
    const [time, energy] = C.reference, at = siteJ(row) / C.time_s[row] / 1e3;
    const money = priced ? `, ${digits(paid(row))} ${C.currency} per iteration` : "";
    const start = C.start ? ` Start it: ${C.start.replace("NUMBER", row + 1)}` : "";
    place.textContent = `Plan ${row + 1}: ${C.words[row]}. ${digits(C.time_s[row])} s (${signed(percent(C.time_s[row], time))}), `
      + `${digits(C.energy_j[row] / 1e3)} kJ (${signed(percent(C.energy_j[row], energy))}), ${digits(at, 3)} kW of the site${money}.${start}`;
  };
  if (C) {
    const range = spans();
    for (const slider of document.querySelectorAll("#choice input")) {
      const [low, high] = range[slider.name], given = C.given[slider.name];
      if (given) slider.value = Math.max(0, Math.min(100, Math.round(100 * (given - low) / ((high - low) || 1))));
      slider.addEventListener("input", () => { moved.add(slider.name); choose(); });
    }
    choose();
  }
  let picked = [];
  const compare = (point) => {
    const {x, y} = point;
    const nearest = C.time_s.map((_, row) => row).reduce((a, b) => far(b, x, y) < far(a, x, y) ? b : a);
    if (far(nearest, x, y) > 1e-7) { document.getElementById("compared").textContent = "That is no plan of the front."; return; }
    picked = [...picked, nearest].slice(-2);
    if (picked.length < 2) { document.getElementById("compared").textContent = `Plan ${nearest + 1}; click another to compare.`; return; }
    const [a, b] = picked, of = (values) => signed(percent(values[b], values[a]));
    document.getElementById("compared").textContent = `Plan ${b + 1} against plan ${a + 1}: time ${of(C.time_s)}, energy ${of(C.energy_j)}. `
      + `${b + 1}: ${C.words[b]}. ${a + 1}: ${C.words[a]}.`;
  };
  const far = (row, x, y) => ((C.time_s[row] / C.time_unit - x) / x) ** 2 + ((C.energy_j[row] / C.energy_unit - y) / y) ** 2;
  for (const radio of document.querySelectorAll("input[name=plan]")) radio.addEventListener("change", drawPlan);

  start(drawAll).then(() => {
    followZoom();
    if (C) document.getElementById("figure-front").on("plotly_click", (event) => compare(event.points[0]));
  });
})();
