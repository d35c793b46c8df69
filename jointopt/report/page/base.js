"use strict";
// What every report shares: colours of the page for Plotly, light and dark, buttons that copy, paper.
const report = (() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const CONFIG = {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d", "toImage"]};

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const resolved = (value) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9]+)\)$/.exec(value);
      return name ? colour(name[1]) : value;
    }
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(resolved);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item)]));
  };
  const themed = (layout) => {
    const axis = {gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line")};
    const found = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("--ink"), size: 13},
      hoverlabel: {bgcolor: colour("--panel"), bordercolor: colour("--muted"), font: {color: colour("--ink")}, align: "left"},
      modebar: {color: colour("--muted"), activecolor: colour("--ink"), bgcolor: "rgba(0,0,0,0)"},
      ...resolved(layout),
    };
    for (const key of Object.keys(found)) if (/^[xy]axis/.test(key)) found[key] = {...axis, ...found[key]};
    return found;
  };
  const draw = (id, figure) => {
    const place = document.getElementById(`figure-${id}`);
    if (!place) return Promise.resolve();
    place.hidden = !figure;
    return figure ? Plotly.react(place, resolved(figure.data), themed(figure.layout), CONFIG) : Promise.resolve();
  };

  const pause = () => new Promise((done) => setTimeout(done));  // the page stays at hand while the rest is drawn
  const drawFigures = async () => { for (const id of Object.keys(DATA.figures)) { await draw(id, DATA.figures[id]); await pause(); } };
  let drawOnce = drawFigures;
  const drawAll = async () => {
    root.dataset.drawn = "no";
    await drawOnce();
    root.dataset.drawn = "all";
  };

  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const stored = (action) => { try { return action(localStorage); } catch { return null; } };  // a file may have no storage
  const before = stored((storage) => storage.getItem("jointopt-theme"));
  if (before === "dark" || before === "light") root.dataset.theme = before;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    stored((storage) => storage.setItem("jointopt-theme", root.dataset.theme));
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  const copied = async (text) => {
    if (navigator.clipboard) try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed: as below */ }
    const area = Object.assign(document.createElement("textarea"), {value: text});
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", async () => {
    const done = await copied(button.parentElement.querySelector("code").textContent);
    button.textContent = done ? "Copied" : "Select and copy";
    document.getElementById("spoken").textContent = button.textContent;
    button.focus();
  });

  // On paper: light, as wide as the sheet, every export unfolded.
  const PAPER_PX = 680;
  let folded = [], theme = null;
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme ?? null;
    root.dataset.theme = "light";
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
    for (const place of document.querySelectorAll(".figure.js-plotly-plot")) {
      Plotly.relayout(place, {...themed(place.layout), width: PAPER_PX, autosize: false});
    }
  });
  addEventListener("afterprint", () => {
    if (theme === null) delete root.dataset.theme; else root.dataset.theme = theme;
    for (const one of folded) one.open = false;
    for (const place of document.querySelectorAll(".figure.js-plotly-plot")) Plotly.relayout(place, {width: null, autosize: true});
    drawAll();
  });

  // Draws the page by `drawing`, now and whenever its colours change; by default figure after figure.
  const start = (drawing = drawFigures) => { drawOnce = drawing; return drawAll(); };

  // Plotly is packed in the page; `then` runs once it is unpacked.
  const ready = async (then) => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const program = document.createElement("script");
    program.textContent = await new Response(stream).text();
    document.head.append(program);
    then();
  };
  return {CONFIG, DATA, colour, draw, pause, ready, root, start, themed};
})();
