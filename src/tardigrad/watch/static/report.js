"use strict";
/* A report: the reader chooses the horizontal axis, and charts whose numbers are here are drawn when they come into
 * view. A chart that cannot be drawn stays a picture. */
(() => {
  document.documentElement.classList.add("scripted");
  for (const row of document.querySelectorAll(".turns")) {
    const figures = row.parentElement.querySelectorAll("figure[data-turn]");
    const show = (turn) => {
      for (const button of row.children) button.setAttribute("aria-pressed", String(button.value === turn));
      for (const figure of figures) figure.hidden = figure.dataset.turn !== turn;
    };
    for (const button of row.children) button.addEventListener("click", () => show(button.value));
    show(row.children[0].value);
  }

  const specs = JSON.parse(document.getElementById("charts").textContent), drawn = [];

  function draw(figure) {
    const plot = figure.querySelector(".plot"), tall = figure.querySelector("svg").getBoundingClientRect().height;
    figure.classList.add("interactive");
    try {
      const legend = specs[figure.id].kind === "trips" || specs[figure.id].lines.length < 3 ? 44 : 64;
      drawn.push(charts.draw(plot, { ...specs[figure.id], height: Math.max(190, Math.round(tall) - legend) }));
    } catch (error) {
      figure.classList.remove("interactive");
      plot.replaceChildren();
    }
  }

  const near = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (!one.isIntersecting) continue;
      near.unobserve(one.target);
      draw(one.target);
    }
  }, { rootMargin: "800px" });
  for (const name of Object.keys(specs)) near.observe(document.getElementById(name));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const one of drawn) one.repaint();
  });
})();
