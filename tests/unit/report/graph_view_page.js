// Runs the script of a page's graph with the least of a browser that it needs, and prints what it did.
"use strict";
const fs = require("fs");
const [, , dataFile, scriptFile] = process.argv;
const drawn = { boxes: 0, arcs: 0, texts: [] };
const pen = new Proxy({}, {
  get: (_, name) => {
    if (name === "fillRect") return () => { drawn.boxes += 1; };
    if (name === "bezierCurveTo") return () => { drawn.arcs += 1; };
    if (name === "fillText") return (text) => { drawn.texts.push(text); };
    return () => {};
  },
  set: () => true,
});
const element = (extra = {}) => {
  const listeners = {};
  return {
    clientWidth: 800, clientHeight: 600, width: 0, height: 0, textContent: "", value: "",
    addEventListener: (name, react) => { listeners[name] = react; },
    fire: (name, event = {}) => listeners[name]({ preventDefault: () => {}, ...event, type: name }),
    getBoundingClientRect: () => ({ left: 0, top: 0, width: 800, height: 600 }),
    setPointerCapture: () => {}, getContext: () => pen, ...extra,
  };
};
const canvas = element(), about = element(), field = element(), count = element(), button = element();
const tools = { querySelector: (what) => ({ input: field, ".graph-count": count, button })[what] };
const frame = {
  querySelector: (what) => ({ canvas, ".graph-about": about })[what], previousElementSibling: tools,
};
const source = { textContent: fs.readFileSync(dataFile, "utf8"), previousElementSibling: frame };
global.document = { currentScript: { previousElementSibling: source }, activeElement: canvas };
global.window = { matchMedia: () => element({ matches: false }), devicePixelRatio: 2 };
global.requestAnimationFrame = (draw) => draw();
global.ResizeObserver = class { observe() {} };
eval(fs.readFileSync(scriptFile, "utf8"));

const told = { first: { ...drawn, texts: drawn.texts.length } };
field.value = process.argv[4];
field.fire("input");
told.found = count.textContent;
told.about = about.textContent;
field.fire("keydown", { key: "Enter" });
told.place = count.textContent;
drawn.texts = [];
canvas.fire("wheel", { deltaY: -100, clientX: 400, clientY: 300 });
told.near = drawn.texts;
canvas.fire("keydown", { key: "ArrowDown" });
canvas.fire("pointerdown", { pointerId: 1, clientX: 5, clientY: 5 });
canvas.fire("pointermove", { pointerId: 1, clientX: 45, clientY: 5 });
canvas.fire("pointerup", { pointerId: 1, clientX: 45, clientY: 5 });
button.fire("click");
field.value = "";
field.fire("input");
told.cleared = about.textContent === "";
console.log(JSON.stringify(told));
