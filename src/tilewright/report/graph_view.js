"use strict";
(() => {
  const source = document.currentScript.previousElementSibling;
  const data = JSON.parse(source.textContent);
  const frame = source.previousElementSibling;
  const canvas = frame.querySelector("canvas");
  const about = frame.querySelector(".graph-about");
  const tools = frame.previousElementSibling;
  const field = tools.querySelector("input");
  const count = tools.querySelector(".graph-count");
  const pen = canvas.getContext("2d");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const view = { x: 0, y: 0, scale: 1 };
  const most = Math.max(1e-9, ...data.boxes.map((box) => box.share));
  let chosen = -1, found = [], place = -1, waiting = false;

  const draw = () => {
    waiting = false;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const ink = dark.matches ? "#eee" : "#111", faint = dark.matches ? "#999" : "#777";
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, -ratio * view.x * view.scale, -ratio * view.y * view.scale);
    const right = view.x + width / view.scale, bottom = view.y + height / view.scale;
    pen.lineWidth = Math.max(1, 0.7 / view.scale);
    for (const [from, to] of data.arcs) {
      const a = data.boxes[from], b = data.boxes[to];
      const x1 = a.x + a.w / 2, y1 = a.y + a.h, x2 = b.x + b.w / 2, y2 = b.y;
      if (Math.max(y1, y2) < view.y || Math.min(y1, y2) > bottom) continue;
      // What passes by other boxes goes around them on the right.
      const bend = y2 - y1 > 160 ? Math.max(a.w, b.w) / 2 + 30 : 0;
      if (Math.max(x1, x2) + bend < view.x || Math.min(x1, x2) > right) continue;
      pen.strokeStyle = from === chosen || to === chosen ? ink : faint;
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.bezierCurveTo(x1 + bend, y1 + 22, x2 + bend, y2 - 22, x2, y2);
      pen.stroke();
    }
    const isReadable = view.scale > 0.35;
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "top";
    data.boxes.forEach((box, number) => {
      if (box.x > right || box.x + box.w < view.x || box.y > bottom || box.y + box.h < view.y) return;
      const heat = Math.sqrt(box.share / most);
      pen.fillStyle = `hsl(${Math.round(215 - 215 * heat)} 70% ${dark.matches ? 28 : 86}%)`;
      pen.fillRect(box.x, box.y, box.w, box.h);
      pen.strokeStyle = number === chosen ? ink : faint;
      pen.lineWidth = number === chosen ? 3 / view.scale : 1;
      pen.strokeRect(box.x, box.y, box.w, box.h);
      if (!isReadable) return;
      pen.fillStyle = ink;
      box.lines.forEach((line, row) => pen.fillText(line, box.x + 8, box.y + 8 + 16 * row, box.w - 12));
    });
  };
  const redraw = () => {
    if (!waiting) { waiting = true; requestAnimationFrame(draw); }
  };
  const whole = () => {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    view.scale = Math.min(1, width / (data.width + 80), Math.max(height / (data.height + 40), 0.25));
    view.x = data.width / 2 - width / view.scale / 2;
    view.y = -20;
    redraw();
  };
  const choose = (number) => {
    chosen = number;
    if (number < 0) { about.textContent = ""; redraw(); return; }
    const lines = [...data.boxes[number].about];
    for (const [from, to, passed] of data.arcs) {
      if (to === number) lines.push(...passed.map((text) => `reads ${text}`));
      if (from === number) lines.push(...passed.map((text) => `gives ${text}`));
    }
    about.textContent = lines.join("\n");
    redraw();
  };
  const goTo = (number) => {
    const box = data.boxes[number];
    view.scale = Math.max(view.scale, 0.8);
    view.x = box.x + box.w / 2 - canvas.clientWidth / view.scale / 2;
    view.y = box.y + box.h / 2 - canvas.clientHeight / view.scale / 2;
    choose(number);
  };
  const at = (event) => {
    const area = canvas.getBoundingClientRect();
    return [(event.clientX - area.left) / view.scale + view.x, (event.clientY - area.top) / view.scale + view.y];
  };
  const zoom = (factor, clientX, clientY) => {
    const area = canvas.getBoundingClientRect();
    const scale = Math.min(4, Math.max(0.01, view.scale * factor));
    view.x += (clientX - area.left) * (1 / view.scale - 1 / scale);
    view.y += (clientY - area.top) * (1 / view.scale - 1 / scale);
    view.scale = scale;
    redraw();
  };

  const fingers = new Map();
  let moved = 0, spread = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event);
    moved = 0;
    spread = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    fingers.set(event.pointerId, event);
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      const distance = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      if (spread) zoom(distance / spread, (a.clientX + b.clientX) / 2, (a.clientY + b.clientY) / 2);
      spread = distance;
      moved = 99;
      return;
    }
    const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
    moved += Math.abs(dx) + Math.abs(dy);
    view.x -= dx / view.scale;
    view.y -= dy / view.scale;
    redraw();
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId) || moved > 4 || event.type !== "pointerup") return;
    const [x, y] = at(event);
    choose(data.boxes.findIndex((box) => x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h));
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  // Until the picture is chosen the wheel scrolls the page, which would else end here.
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = 60 / view.scale;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    const area = canvas.getBoundingClientRect();
    if (moves[event.key]) {
      view.x += moves[event.key][0];
      view.y += moves[event.key][1];
      redraw();
    } else if (event.key === "+" || event.key === "-") {
      zoom(event.key === "+" ? 1.25 : 0.8, area.left + area.width / 2, area.top + area.height / 2);
    } else return;
    event.preventDefault();
  });
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = words.length ? data.boxes.flatMap((box, n) => (words.every((w) => box.find.includes(w)) ? [n] : [])) : [];
    place = found.length ? 0 : -1;
    count.textContent = words.length ? `${found.length} found` : "";
    if (place >= 0) goTo(found[0]);
    else choose(-1);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    place = (place + (event.shiftKey ? found.length - 1 : 1)) % found.length;
    count.textContent = `${place + 1} of ${found.length}`;
    goTo(found[place]);
  });
  tools.querySelector("button").addEventListener("click", whole);
  dark.addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(canvas);
  whole();
})();
