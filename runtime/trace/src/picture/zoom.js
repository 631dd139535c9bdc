// Draws bars, arrows and axis of the window [from, to] again: the wheel zooms, dragging moves, a double click shows everything.
const data = JSON.parse(document.getElementById("timeline-data").textContent);
const svg = document.querySelector("svg");
const [axis, bars, arrows] = ["axis", "bars", "arrows"].map(id => document.getElementById(id));
const [left, right, span] = [data.left, data.right, Math.max(data.to - data.from, 1)];
const [TICKET, KIND, NAME, SITE, BYTES, ENQUEUED, SHOWN, STARTED, FINISHED, WAIT] = Array(10).keys();
const [BAR, NARROWEST, NEAR, CHARACTER] = [20, 0.75, 2, 6.7];
const WAITS = data.kinds.indexOf("wait");
const grid = axis.querySelector("path").getAttribute("d").split(" ")[1];
const tickY = axis.querySelector("text").getAttribute("y");
const byTicket = data.tracks.map(track => new Map(track.ops.map(op => [op[TICKET], op])));
let [from, to] = [0, span];

const xml = text => text.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const x = at => left + (at - from) / (to - from) * (right - left);
const clip = at => Math.min(Math.max(x(at), left - 4), right + 4);

function time(ns) {
  const [name, unit] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]].find(([, unit]) => ns >= unit) ?? ["ns", 1];
  const value = ns / unit;
  return `${value.toFixed(unit === 1 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ${name}`;
}

function drawAxis() {
  let step = 1;
  for (let base = 1; (to - from) / step > 11; ) {
    const next = [2, 5, 10].map(n => n * base).find(n => n > step);
    step = next;
    if (next === base * 10) base = next;
  }
  const [name, unit] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]].find(([, unit]) => step * 2 >= unit) ?? ["ns", 1];
  const digits = step % unit === 0 ? 0 : (step * 10) % unit === 0 ? 1 : 2;
  let out = "";
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    out += `<path class="grid" d="M${x(at).toFixed(2)} ${grid}"/>` +
      `<text class="tick" x="${x(at).toFixed(2)}" y="${tickY}">${(at / unit).toFixed(digits)} ${name}</text>`;
  }
  axis.innerHTML = out;
}

function tooltip(track, op) {
  const held = op[KIND] === WAITS ? "held " : "";
  let text = `${data.names[op[NAME]]}: ${held}${time(op[FINISHED] - op[SHOWN])}\n${track.label}, ticket ${op[TICKET]}\n${data.sites[op[SITE]]}`;
  if (op[BYTES] > 0) text += `\n${op[BYTES]} bytes`;
  if (op[ENQUEUED] !== null) text += `\nqueued for ${time(Math.max(op[STARTED] - op[ENQUEUED], 0))}`;
  return xml(text);
}

function drawTrack(track) {
  let out = "", narrow = null;
  const rect = (kind, begin, width, title) =>
    `<rect class="${data.kinds[kind]}" x="${begin.toFixed(2)}" y="${track.y}" width="${width.toFixed(2)}" height="${BAR}"` +
    `${width >= 6 ? ' rx="2"' : ""}><title>${title}</title></rect>`;
  const flush = () => {
    if (!narrow) return;
    const title = narrow.ops === 1 ? tooltip(track, narrow.first)
      : `${narrow.ops} ops, ${time(narrow.busy)} in all; zoom in to tell them apart`;
    const kind = narrow.kinds.indexOf(Math.max(...narrow.kinds));
    out += rect(kind, narrow.x, Math.max(narrow.end - narrow.x, NARROWEST), title);
    narrow = null;
  };
  for (const op of track.ops) {
    if (op[SHOWN] === null || op[FINISHED] < from || op[SHOWN] > to) continue;
    const [begin, end, kind] = [clip(op[SHOWN]), clip(op[FINISHED]), op[KIND]];
    if (end - begin >= NARROWEST) {
      flush();
      const name = data.names[op[NAME]];
      out += rect(kind, begin, end - begin, tooltip(track, op));
      const [visible, until] = [Math.max(begin, left), Math.min(end, right)];
      if (kind !== WAITS && name.length * CHARACTER + 8 <= until - visible) {
        out += `<text class="in" x="${((visible + until) / 2).toFixed(2)}" y="${track.y + 14}">${xml(name)}</text>`;
      }
      continue;
    }
    if (narrow && begin > Math.max(narrow.end, narrow.x + NARROWEST)) flush();
    narrow ??= { x: begin, ops: 0, busy: 0, kinds: data.kinds.map(() => -1), first: op };
    narrow.end = end;
    narrow.ops += 1;
    narrow.busy += op[FINISHED] - op[SHOWN];
    narrow.kinds[kind] = Math.max(narrow.kinds[kind], 0) + op[FINISHED] - op[SHOWN];
  }
  flush();
  return out;
}

function drawArrows() {
  let out = "";
  for (const track of data.tracks) {
    const last = new Map();
    for (const op of track.ops) {
      const source = op[WAIT] && byTicket[op[WAIT][0]].get(op[WAIT][1]);
      if (!source || source[FINISHED] === null || op[FINISHED] === null) continue;
      const [start, end] = [x(source[FINISHED]), x(op[FINISHED])];
      if (end < left || start > right) continue;
      const near = last.get(op[WAIT][0]);
      if (near && Math.abs(near[0] - start) < NEAR && Math.abs(near[1] - end) < NEAR) continue;
      last.set(op[WAIT][0], [start, end]);
      const above = data.tracks[op[WAIT][0]].y;
      const [y1, y2] = above < track.y ? [above + BAR, track.y] : [above, track.y + BAR];
      const bend = (y2 - y1) / 2;
      out += `<path class="edge" marker-end="url(#head)" d="M${start.toFixed(2)} ${y1}C${start.toFixed(2)} ${y1 + bend} ` +
        `${end.toFixed(2)} ${y2 - bend} ${end.toFixed(2)} ${y2}"/>`;
    }
  }
  arrows.innerHTML = out;
}

function draw() {
  drawAxis();
  bars.innerHTML = data.tracks.map(drawTrack).join("");
  drawArrows();
}

// Where the mouse is, in the window's time.
function under(event) {
  const box = svg.getBoundingClientRect();
  const at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
  return from + (at - left) / (right - left) * (to - from);
}

function show(a, b) {
  const length = Math.min(Math.max(b - a, Math.min(100, span)), span);
  from = Math.min(Math.max(a, 0), span - length);
  to = from + length;
  requestAnimationFrame(draw);
}

svg.addEventListener("wheel", event => {
  event.preventDefault();
  const [at, factor] = [under(event), Math.exp(event.deltaY * 0.0015)];
  show(at - (at - from) * factor, at + (to - at) * factor);
}, { passive: false });
let grabbed = null;
svg.addEventListener("pointerdown", event => { grabbed = under(event); svg.setPointerCapture(event.pointerId); });
svg.addEventListener("pointermove", event => {
  if (grabbed === null) return;
  const moved = grabbed - under(event);
  show(from + moved, to + moved);
});
svg.addEventListener("pointerup", () => { grabbed = null; });
svg.addEventListener("dblclick", () => show(0, span));
