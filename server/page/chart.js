// Delays of the newest words as dots, with the median and the 95 % line.

const SVG = "http://www.w3.org/2000/svg", WIDTH = 320, HEIGHT = 150, LEFT = 34, TOP = 8, BOTTOM = 8, SHOWN = 80;

/** The value at or below which `share` of the sorted values lie. */
export function quantile(values, share) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))];
}

export const seconds = (ms) => (ms === null ? "–" : `${(ms / 1000).toFixed(2)} s`);

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Draws delays [ms] into an svg; what is drawn is also its label. */
export function draw(svg, delays) {
  const shown = delays.slice(-SHOWN);
  const p50 = quantile(delays, 0.5), p95 = quantile(delays, 0.95);
  const width = svg.clientWidth || WIDTH;
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const highest = Math.max(1000, ...shown, p95 ?? 0);
  const top = highest <= 2000 ? Math.ceil(highest / 500) * 500 : Math.ceil(highest / 1000) * 1000;
  const y = (ms) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.max(0, ms) / top);
  const x = (at) => LEFT + 8 + (at + SHOWN - shown.length) * ((width - LEFT - 16) / (SHOWN - 1));
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    parts.push(element("line", { class: "grid", x1: LEFT, x2: width, y1: y(share * top), y2: y(share * top) }));
    parts.push(element("text", { x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end" }, `${(share * top) / 1000}${share === 1 ? " s" : ""}`));
  }
  for (const [name, value] of [["p95", p95], ["p50", p50]]) {
    if (value !== null) parts.push(element("line", { class: name, x1: LEFT, x2: width, y1: y(value), y2: y(value) }));
  }
  shown.forEach((delay, at) => parts.push(element("circle", { cx: x(at), cy: y(delay), r: 2.6 })));
  svg.replaceChildren(...parts);
  const label = `${delays.length} words, median ${seconds(p50)}, 95 % within ${seconds(p95)}`;
  svg.setAttribute("aria-label", delays.length ? label : "No word yet");
  return { p50, p95 };
}
