// The tree's canvas: pans by dragging, zooms by wheel and pinch, and tells which node was pressed.
import { onThemeChange, palette } from "./colours.js";
import { draw, radius } from "./draw.js";
import { html, useLayoutEffect, useRef } from "./html.js";
import { spread } from "./shape.js";

const CLOSEST = 3;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** What moves: the view, and the one frame that is asked for. */
export class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.view = { x: 0, y: 0, scale: 1 };
    this.size = { width: 1, height: 1, ratio: 1 };
    this.scene = null;
    this.frame = 0;
    this.goal = null;
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.size = { width, height, ratio };
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.paint();
  }

  /** Asks for a frame. */
  paint() {
    this.frame ||= requestAnimationFrame(() => this.now());
  }

  now() {
    this.frame = 0;
    if (!this.scene) return;
    if (this.goal) this.approach();
    draw(this.context, this.size, this.view, this.scene);
  }

  approach() {
    const { view, goal } = this;
    for (const key of ["x", "y", "scale"]) view[key] += (goal[key] - view[key]) * 0.3;
    const far = Math.abs(goal.x - view.x) + Math.abs(goal.y - view.y) + 500 * Math.abs(goal.scale - view.scale);
    if (far < 1) this.rest(goal);
    else this.paint();
  }

  rest(view) {
    this.view = { ...view };
    this.goal = null;
  }

  /** Moves there, smoothly where the reader does not mind motion. */
  glide(view) {
    if (calm.matches) this.rest(view);
    else this.goal = view;
    this.paint();
  }

  /** The room for a whole tree: the margin to the right holds the words of the last steps. */
  get room() {
    return { width: Math.max(60, this.size.width - Math.min(190, this.size.width * 0.3)), height: Math.max(60, this.size.height - 60) };
  }

  whole() {
    const { shape } = this.scene;
    const { room } = this;
    const scale = Math.min(1.15, room.width / Math.max(shape.width, 1), room.height / shape.height);
    const x = 36 + Math.max(0, (room.width - shape.width * scale) / 2);
    return { scale, x, y: this.size.height / 2 - (shape.top + shape.height / 2) * scale };
  }

  /** Zooms by a factor about a point of the canvas, its middle where none is given. */
  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    const { view } = this;
    const scale = Math.min(CLOSEST, Math.max(Math.min(this.whole().scale / 2, 0.5), view.scale * factor));
    const share = scale / view.scale;
    this.rest({ scale, x: x - (x - view.x) * share, y: y - (y - view.y) * share });
    this.paint();
  }

  pan(dx, dy) {
    this.rest({ ...this.view, x: this.view.x + dx, y: this.view.y + dy });
    this.paint();
  }

  /** Brings a node into view, if it is not well inside. */
  show(id) {
    const { shape } = this.scene;
    const view = this.goal ?? this.view;
    const x = shape.x[id] * view.scale + view.x;
    const y = shape.y[id] * view.scale + view.y;
    const edge = Math.min(60, this.size.height / 5);
    if (x > edge && x < this.size.width - 120 && y > edge && y < this.size.height - edge && view.scale > 0.3) return;
    const scale = Math.max(view.scale, 0.7);
    this.glide({ scale, x: this.size.width * 0.4 - shape.x[id] * scale, y: this.size.height / 2 - shape.y[id] * scale });
  }

  /** The node at a point of the canvas, the nearest within reach; null for none. */
  at(x, y) {
    const { shape, nodes, visits, upTo } = this.scene;
    let best = null;
    let least = Infinity;
    for (let id = 0; id <= upTo && id < nodes.parent.length; id++) {
      const away = Math.hypot(shape.x[id] * this.view.scale + this.view.x - x, shape.y[id] * this.view.scale + this.view.y - y);
      const reach = Math.max(9, radius(visits[id]) * this.view.scale + 4);
      if (away < reach && away < least) [best, least] = [id, away];
    }
    return best;
  }
}

/** Pointers: one drags, two pinch, one that stays in its place presses. */
function listen(stage, told) {
  const { canvas } = stage;
  const pointers = new Map();
  let moved = 0;
  const place = (event) => ({ x: event.offsetX, y: event.offsetY });
  const spread = () => {
    const [a, b] = [...pointers.values()];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, width: Math.hypot(a.x - b.x, a.y - b.y) };
  };
  canvas.onpointerdown = (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    if (pointers.size === 1) moved = 0;
  };
  canvas.onpointermove = (event) => {
    if (!stage.scene) return;
    const now = place(event);
    const before = pointers.get(event.pointerId);
    if (!before) return told.hover(stage.at(now.x, now.y));
    const two = pointers.size === 2 ? spread() : null;
    pointers.set(event.pointerId, now);
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (two) {
      const after = spread();
      stage.zoom(after.width / Math.max(1, two.width), after.x, after.y);
      stage.pan(after.x - two.x, after.y - two.y);
    } else if (pointers.size === 1 && moved > 4) stage.pan(now.x - before.x, now.y - before.y);
  };
  canvas.onpointerup = canvas.onpointercancel = (event) => {
    const pressed = pointers.delete(event.pointerId) && event.type === "pointerup" && moved <= 4;
    const id = pressed && stage.scene ? stage.at(event.offsetX, event.offsetY) : null;
    if (id !== null) told.select(id);
  };
  canvas.onpointerleave = () => told.hover(null);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (stage.scene) stage.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), event.offsetX, event.offsetY);
  }, { passive: false });
}

/** `scene` as `draw` wants it, less colours and hovered; `stageRef` is given the stage for the buttons. */
export function TreeCanvas({ scene, treeKey, label, onSelect, stageRef }) {
  const canvas = useRef(null);
  const select = useRef(onSelect);
  select.current = onSelect;
  useLayoutEffect(() => {
    const stage = new Stage(canvas.current);
    stageRef.current = stage;
    canvas.current.stage = stage; // what tests and benchmarks measure
    const hover = (id) => {
      if (!stage.scene || stage.scene.hovered === id) return;
      stage.scene.hovered = id;
      canvas.current.style.cursor = id === null ? "grab" : "pointer";
      stage.paint();
    };
    listen(stage, { hover, select: (id) => select.current(id) });
    const watcher = new ResizeObserver(() => stage.resize());
    watcher.observe(canvas.current);
    const recolour = () => {
      if (stage.scene) stage.scene.colours = palette();
      stage.paint();
    };
    const forget = onThemeChange(recolour);
    return () => {
      watcher.disconnect();
      cancelAnimationFrame(stage.frame);
      forget();
      stageRef.current = null;
    };
  }, []);
  const shown = useRef({ key: null, from: null, shape: null });
  useLayoutEffect(() => {
    const stage = stageRef.current;
    if (!stage || !scene) return;
    const fresh = shown.current.key !== treeKey;
    if (fresh) stage.resize();
    if (fresh || shown.current.from !== scene.shape) {
      shown.current = { key: treeKey, from: scene.shape, shape: spread(scene.shape, stage.room.width, stage.room.height) };
    }
    stage.scene = { ...scene, shape: shown.current.shape, colours: stage.scene?.colours ?? palette(), hovered: null };
    if (fresh) stage.rest(stage.whole());
    stage.paint();
  });
  return html`<canvas class="tree-canvas" ref=${canvas} role="img" aria-label=${label}></canvas>`;
}
