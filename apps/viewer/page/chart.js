// One chart, drawn by uPlot, in the colours of the theme.
import uPlot from "../vendor/uplot/uplot.js";
import { onThemeChange, themeColours, themeFont } from "./colours.js";
import { number } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

const HEIGHT = 190;
const FEW = 4;
const WHOLE_STEPS = [1, 2, 5].flatMap((step) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((ten) => step * ten)).sort((a, b) => a - b);

/**
 * `lines`: {name, values} and how each is drawn: `smooth`, `dots`, `bars` of that width, or between its `low` and `high`. `words` stand in the
 * caption instead of the last value, `hint` below it.
 */
export function Chart({ title, unit, x, lines, words, hint }) {
  const box = useRef(null);
  const [theme, setTheme] = useState(0);
  useEffect(() => onThemeChange(() => setTheme((times) => times + 1)), []);
  useEffect(() => {
    const element = box.current;
    const chart = new uPlot(options(element.clientWidth, unit, lines), dataOf(x, lines), element);
    const watcher = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      chart.destroy();
    };
  }, [x, lines, theme]);
  const last = lines[0].values.findLast((value) => value !== null);
  const told = words ?? `${number(last ?? null)} at last`;
  return html`<figure class="chart"><figcaption>${title} <small>${told}</small></figcaption>
    <div class="plot" ref=${box} role="img" aria-label=${`${title} by ${unit}: ${told}`}></div>
    ${hint && html`<p class="hint">${hint}</p>`}</figure>`;
}

/** Where a line is smoothed, the logged values stay behind it, faint; an interval lies behind its line. */
const dataOf = (x, lines) => [x, ...lines.flatMap((line) =>
  (line.smooth ? [line.values, smoothed(line.values)] : line.low ? [line.low, line.high, line.values] : [line.values]))];

/** A running mean that looks back over about a tenth of the run, corrected for its start, as in curves.png. */
function smoothed(values) {
  const keep = 1 - 1 / Math.max(1, values.length / 10);
  let [total, weight] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    [total, weight] = [keep * total + (1 - keep) * value, keep * weight + (1 - keep)];
    return total / weight;
  });
}

function options(width, unit, lines) {
  const [soft, grid, wrong, accent, faint] = themeColours("ink-soft", "line", "wrong", "accent", "chart-faint");
  const bars = lines[0].bars;
  const axis = { stroke: soft, font: `11px ${themeFont()}`, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  const series = lines.flatMap((line) => {
    if (line.dots) return [{ label: line.name, stroke: wrong, paths: () => null, points: { show: true, size: 5, fill: wrong } }];
    const few = line.values.filter((value) => value !== null).length < FEW; // no line, or hardly one
    const main = { label: line.name, stroke: accent, width: 2, spanGaps: true, points: { show: few, size: 6, fill: accent } };
    if (line.bars) return [{ ...main, width: 0, fill: accent, points: { show: false }, paths: uPlot.paths.bars({ size: [0.86, 60] }) }];
    const edge = { stroke: faint, width: 1, points: { show: false } };
    if (line.low) return [{ ...edge, label: "low" }, { ...edge, label: "high" }, main];
    return line.smooth ? [{ label: "logged", stroke: faint, width: 1, spanGaps: true, points: { show: false } }, { ...main, label: "smoothed" }] : [main];
  });
  const told = (_, value) => (value === null ? "–" : number(value));
  return {
    width, height: HEIGHT, legend: { live: true }, cursor: { points: { size: 6 } },
    scales: bars
      ? { x: { time: false, range: (_, least, most) => [least - 0.7 * bars, most + 0.7 * bars] }, y: { range: (_, __, most) => [0, most * 1.1] } }
      : { x: { time: false } },
    bands: lines.some((line) => line.low) ? [{ series: [2, 1], fill: faint }] : [],
    axes: [{ ...axis, size: 28, ...(bars ? { incrs: WHOLE_STEPS } : {}) }, { ...axis, size: 52, ...(bars ? { incrs: WHOLE_STEPS } : {}), values: (_, ticks) => ticks.map((tick) => number(tick, 2)) }],
    series: [{ label: unit, value: told }, ...series.map((one) => ({ ...one, value: told }))],
  };
}
