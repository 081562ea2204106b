"use strict";
// Draws the graph of a page: places its boxes with dagre, zooms and moves with d3, finds boxes and says what they are.
(() => {
  const LINE = 16, PAD = 8, GAP_X = 28, GAP_Y = 44, FONT = "12px system-ui, sans-serif";
  // dagre takes time that grows faster than the graph, some 0.2 s for 250 boxes: larger graphs are placed in pieces.
  const PIECE = 250, PIECE_OF_MANY = 60, MANY = 1000;
  const AT_ONCE_MS = 50;
  const READABLE = 0.7;

  // Where pieces begin: where the fewest arcs pass in the second half of what a piece may have.
  const starts = (number, arcs) => {
    const most = number > MANY ? PIECE_OF_MANY : PIECE;
    const passing = new Array(number + 1).fill(0);
    for (const [from, to] of arcs) {
      passing[Math.min(from, to) + 1] += 1;
      passing[Math.max(from, to) + 1] -= 1;
    }
    for (let place = 1; place <= number; place += 1) passing[place] += passing[place - 1];
    const found = [0];
    while (number - found.at(-1) > most) {
      let best = found.at(-1) + most;
      for (let place = best; place > found.at(-1) + most / 2; place -= 1) {
        if (passing[place] < passing[best]) best = place;
      }
      found.push(best);
    }
    return found;
  };

  // Gives boxes from start to end their places, below all before, and arcs between them their bends.
  const placePiece = (boxes, arcs, start, end, top) => {
    const graph = new dagre.graphlib.Graph().setDefaultEdgeLabel(() => ({}));
    graph.setGraph({ nodesep: GAP_X, ranksep: GAP_Y, edgesep: GAP_X / 2, ranker: "tight-tree" });
    for (let number = start; number < end; number += 1) {
      graph.setNode(String(number), { width: boxes[number].w, height: boxes[number].h });
    }
    const isInside = ({ from, to }) => Math.min(from, to) >= start;
    for (const { from, to } of arcs.filter(isInside)) graph.setEdge(String(from), String(to));
    dagre.layout(graph);
    // As near as can be below what it reads from the pieces before.
    const away = arcs.filter((arc) => arc.from < start).map(({ from, to }) =>
      boxes[from].x + boxes[from].w / 2 - graph.node(String(to)).x);
    const left = d3.mean(away) ?? 0;
    for (let number = start; number < end; number += 1) {
      const { x, y } = graph.node(String(number));
      boxes[number].x = x + left - boxes[number].w / 2;
      boxes[number].y = y + top - boxes[number].h / 2;
    }
    const through = d3.line((p) => p.x + left, (p) => p.y + top).curve(d3.curveBasis);
    for (const arc of arcs) {
      const from = boxes[arc.from], to = boxes[arc.to];
      const bends = isInside(arc) && graph.edge(String(arc.from), String(arc.to)).points;
      arc.path = new Path2D(bends ? through(bends) : past(from, to));
      arc.top = Math.min(from.y, to.y);
      arc.bottom = Math.max(from.y + from.h, to.y + to.h);
    }
    return d3.max(boxes.slice(start, end), (box) => box.y + box.h) + GAP_Y;
  };

  // From a piece to a later one: beside the boxes between them, on the right.
  const past = (from, to) => {
    const x1 = from.x + from.w / 2, y1 = from.y + from.h, x2 = to.x + to.w / 2, y2 = to.y;
    const bend = y2 - y1 > 4 * GAP_Y ? Math.max(from.w, to.w) / 2 + GAP_X : 0;
    return `M${x1},${y1}C${x1 + bend},${y1 + GAP_Y / 2},${x2 + bend},${y2 - GAP_Y / 2},${x2},${y2}`;
  };

  const show = (frame) => {
    const { boxes, arcs: described } = JSON.parse(frame.nextElementSibling.textContent);
    const arcs = described.map(([from, to, passed]) => ({ from, to, passed }));
    const canvas = frame.querySelector("canvas"), about = frame.querySelector(".graph-about");
    const tools = frame.previousElementSibling;
    const field = tools.querySelector("input"), count = tools.querySelector(".graph-count");
    const pen = canvas.getContext("2d"), surface = d3.select(canvas);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const most = d3.max(boxes, (box) => box.share) || 1;
    const size = { left: 0, right: 0, bottom: 0 };
    let view = d3.zoomIdentity, chosen = -1, found = [], turn = -1, isWaiting = false, isMoved = false, numPlaced = 0;

    const draw = () => {
      isWaiting = false;
      const ratio = window.devicePixelRatio || 1;
      const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
      if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
      const ink = dark.matches ? "#eee" : "#111", faint = dark.matches ? "#999" : "#777";
      pen.setTransform(1, 0, 0, 1, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.setTransform(ratio * view.k, 0, 0, ratio * view.k, ratio * view.x, ratio * view.y);
      const [left, top] = view.invert([0, 0]);
      const [right, bottom] = view.invert([canvas.clientWidth, canvas.clientHeight]);
      pen.lineWidth = Math.max(1, 0.7 / view.k);
      for (const arc of arcs) {
        if (!arc.path || arc.bottom < top || arc.top > bottom) continue;
        pen.strokeStyle = arc.from === chosen || arc.to === chosen ? ink : faint;
        pen.stroke(arc.path);
      }
      pen.font = FONT;
      pen.textBaseline = "top";
      for (let number = 0; number < numPlaced; number += 1) {
        const box = boxes[number];
        if (box.x > right || box.x + box.w < left || box.y > bottom || box.y + box.h < top) continue;
        const heat = Math.sqrt(box.share / most);
        pen.fillStyle = `hsl(${Math.round(215 - 215 * heat)} 70% ${dark.matches ? 28 : 86}%)`;
        pen.fillRect(box.x, box.y, box.w, box.h);
        pen.strokeStyle = number === chosen ? ink : faint;
        pen.lineWidth = number === chosen ? 3 / view.k : 1;
        pen.strokeRect(box.x, box.y, box.w, box.h);
        if (view.k <= 0.35) continue; // texts could not be read
        pen.fillStyle = ink;
        box.lines.forEach((line, row) => pen.fillText(line, box.x + PAD, box.y + PAD + LINE * row));
      }
    };
    const redraw = () => {
      if (!isWaiting) { isWaiting = true; requestAnimationFrame(draw); }
    };

    const zoom = d3.zoom()
      .scaleExtent([0.01, 4])
      // Until the picture is chosen the wheel scrolls the page, which would else end here.
      .filter((event) => event.type !== "wheel" ? !event.button : event.ctrlKey || document.activeElement === canvas)
      .on("zoom", ({ transform, sourceEvent }) => {
        view = transform;
        if (sourceEvent) isMoved = true;
        redraw();
      });
    surface.call(zoom).on("dblclick.zoom", null);
    const lookAt = (x, y, scale, height) =>
      surface.call(zoom.transform, d3.zoomIdentity
        .translate(canvas.clientWidth / 2 - scale * x, height - scale * y).scale(scale));
    const wholeScale = () => {
      const across = canvas.clientWidth / (size.right - size.left + 80);
      return Math.min(1, across, Math.max(canvas.clientHeight / (size.bottom + 40), 0.25));
    };
    const whole = () => lookAt((size.left + size.right) / 2, 0, wholeScale(), 20);
    // What is too large to be read as a whole is shown from its beginning.
    const begin = () => {
      if (isMoved) redraw();
      else if (wholeScale() >= READABLE) whole();
      else lookAt(boxes[0].x + boxes[0].w / 2, 0, READABLE, 20);
    };
    const choose = (number) => {
      chosen = number;
      const lines = number < 0 ? [] : [...boxes[number].about];
      for (const { from, to, passed } of number < 0 ? [] : arcs) {
        if (to === number) lines.push(...passed.map((text) => `reads ${text}`));
        if (from === number) lines.push(...passed.map((text) => `gives ${text}`));
      }
      about.textContent = lines.join("\n");
      redraw();
    };
    const goTo = (number) => {
      const { x, y, w, h } = boxes[number];
      lookAt(x + w / 2, y + h / 2, Math.max(view.k, 0.8), canvas.clientHeight / 2);
      choose(number);
    };

    canvas.addEventListener("click", (event) => {
      const [x, y] = view.invert(d3.pointer(event, canvas));
      choose(boxes.findIndex((box) => x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h));
    });
    canvas.addEventListener("keydown", (event) => {
      const step = 60 / view.k;
      const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      if (moves[event.key]) surface.call(zoom.translateBy, ...moves[event.key]);
      else if (event.key === "+" || event.key === "-") surface.call(zoom.scaleBy, event.key === "+" ? 1.25 : 0.8);
      else return;
      event.preventDefault();
    });
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      found = words.length ? d3.range(boxes.length).filter((n) => words.every((w) => boxes[n].find.includes(w))) : [];
      turn = found.length ? 0 : -1;
      count.textContent = words.length ? `${found.length} found` : "";
      if (found.length) goTo(found[0]);
      else choose(-1);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !found.length) return;
      turn = (turn + (event.shiftKey ? found.length - 1 : 1)) % found.length;
      count.textContent = `${turn + 1} of ${found.length}`;
      goTo(found[turn]);
    });
    tools.querySelector("button").addEventListener("click", whole);
    dark.addEventListener("change", redraw);
    new ResizeObserver(redraw).observe(canvas);

    const measure = (end, bottom) => {
      for (const box of boxes.slice(numPlaced, end)) {
        size.left = Math.min(size.left, box.x);
        size.right = Math.max(size.right, box.x + box.w);
      }
      size.bottom = bottom;
      numPlaced = end;
    };
    // Piece by piece, so that the page is read meanwhile.
    const place = async () => {
      pen.font = FONT;
      for (const box of boxes) {
        box.w = 2 * PAD + d3.max(box.lines, (line) => pen.measureText(line).width);
        box.h = 2 * PAD + LINE * box.lines.length;
      }
      const pieces = starts(boxes.length, described), into = pieces.map(() => []);
      const pieceOf = (number) => d3.bisectRight(pieces, number) - 1;
      for (const arc of arcs) into[Math.max(pieceOf(arc.from), pieceOf(arc.to))].push(arc);
      let top = 0, since = performance.now();
      for (let piece = 0; piece < pieces.length; piece += 1) {
        const end = pieces[piece + 1] ?? boxes.length;
        top = placePiece(boxes, into[piece], pieces[piece], end, top);
        measure(end, top);
        if (performance.now() - since > AT_ONCE_MS) {
          count.textContent = `${end.toLocaleString("en")} of ${boxes.length.toLocaleString("en")} placed`;
          begin();
          await new Promise((done) => setTimeout(done));
          since = performance.now();
        }
      }
      frame.style.height = `min(75vh, ${Math.ceil(top + GAP_Y)}px)`;
      count.textContent = "";
      field.disabled = false;
      frame.placed = boxes;
      begin();
    };
    field.disabled = true;
    if (boxes.length) place();
  };
  document.querySelectorAll(".graph").forEach(show);
})();
