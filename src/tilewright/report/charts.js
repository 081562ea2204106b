"use strict";
// Draws the pictures of a page with Observable Plot, each from its description, anew when its width changes.
(() => {
  // Texts along lines: each is turned as the way from its (x, y) to its (x2, y2) is on the screen.
  const textAlong = (data, { x2, y2, ...options }) =>
    Plot.text(data, Plot.initializer(options, (rows, facets, channels, { x, y }) => {
      const turn = (i) => Math.atan2(y(y2[i]) - y(options.y[i]), x(x2[i]) - x(options.x[i])) * 180 / Math.PI;
      return { channels: { rotate: { value: d3.range(x2.length).map(turn) } } };
    }));
  const kinds = { ...Plot, textAlong };
  const mark = ([kind, number, options]) =>
    number === null ? kinds[kind](options) : kinds[kind]({ length: number }, options);

  for (const figure of document.querySelectorAll("figure.chart")) {
    let picture = null, width = 0;
    const draw = () => {
      if (figure.clientWidth === width || !figure.clientWidth) return;
      width = figure.clientWidth;
      const { marks, ...options } = JSON.parse(figure.querySelector("script").textContent);
      const drawn = Plot.plot({ ...options, width, marks: marks.map(mark) });
      if (options.ariaLabel) drawn.setAttribute("role", "img");
      if (picture) picture.replaceWith(drawn);
      else figure.append(drawn);
      picture = drawn;
      // Numbers at the right of their ticks: where the last one has no room, it stands at the left.
      const end = drawn.getBoundingClientRect().right;
      for (const text of drawn.querySelectorAll('[aria-label="x-axis tick label"][text-anchor="start"] text'))
        if (text.getBoundingClientRect().right > end) {
          text.setAttribute("text-anchor", "end");
          text.setAttribute("dx", -5);  // from 2 px behind the tick to before it
        }
    };
    new ResizeObserver(draw).observe(figure);
  }
})();
