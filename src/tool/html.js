/* Tooltips, the figures under the pointer in a chart, and tabs. Without it the page shows everything, one below
 * the other, with the browser's own tooltips. Texts reach it only as attributes and leave it as textContent. */
(function () {
  "use strict";
  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);

  function show(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    var box = tip.getBoundingClientRect();
    var left = x + 14 + box.width > innerWidth - 6 ? x - 14 - box.width : x + 14;
    var top = y + 16 + box.height > innerHeight - 6 ? y - 12 - box.height : y + 16;
    tip.style.left = Math.max(6, left) + "px";
    tip.style.top = Math.max(6, top) + "px";
  }

  document.querySelectorAll("svg title").forEach(function (title) {
    var of = title.parentNode;
    if (of.tagName === "svg") return;
    of.setAttribute("data-tip", title.textContent);
    of.setAttribute("aria-label", title.textContent);
    title.remove();
  });

  function size(bytes) {
    var units = ["B", "KiB", "MiB", "GiB", "TiB"], unit = 0;
    while (bytes >= 1024 && unit < 4) {
      bytes /= 1024;
      unit++;
    }
    return (unit === 0 ? bytes : bytes.toFixed(2)) + " " + units[unit];
  }

  document.querySelectorAll(".chart").forEach(function (chart) {
    var plot = chart.querySelector(".plot"), data = JSON.parse(chart.getAttribute("data-points"));
    var cross = document.createElement("div");
    cross.className = "cross";
    cross.hidden = true;
    plot.appendChild(cross);
    plot.addEventListener("pointermove", function (event) {
      var box = plot.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
      var best = 0;
      data.at.forEach(function (at, i) {
        if (Math.abs(at - share) < Math.abs(data.at[best] - share)) best = i;
      });
      var lines = [data.when[best]];
      data.series.forEach(function (series) {
        lines.push(series.name + ": " + size(series.values[best]));
      });
      var mark = event.target.closest("[data-tip]");
      if (mark) lines = [mark.getAttribute("data-tip")];
      cross.hidden = false;
      cross.style.left = (mark ? share : data.at[best]) * 100 + "%";
      show(lines.join("\n"), event.clientX, event.clientY);
    });
    plot.addEventListener("pointerleave", function () {
      cross.hidden = tip.hidden = true;
    });
  });

  document.addEventListener("pointermove", function (event) {
    if (event.target.closest(".plot")) return;
    var of = event.target.closest("[data-tip]");
    if (of) show(of.getAttribute("data-tip"), event.clientX, event.clientY);
    else tip.hidden = true;
  });
  document.addEventListener("scroll", function () { tip.hidden = true; }, true);

  document.querySelectorAll(".moments").forEach(function (all) {
    var views = Array.prototype.slice.call(all.querySelectorAll(".moment"));
    if (views.length < 2) return;
    var bar = document.createElement("div");
    bar.className = "tabs";
    bar.setAttribute("role", "tablist");
    function choose(chosen) {
      views.forEach(function (view, i) {
        view.hidden = i !== chosen;
        bar.children[i].setAttribute("aria-selected", i === chosen ? "true" : "false");
      });
    }
    views.forEach(function (view, i) {
      var button = document.createElement("button");
      button.type = "button";
      button.setAttribute("role", "tab");
      button.textContent = view.getAttribute("data-name");
      button.addEventListener("click", function () { choose(i); });
      bar.appendChild(button);
    });
    all.insertBefore(bar, views[0]);
    choose(0);
  });

  function open() {
    var of = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    for (; of; of = of.parentElement) if (of.tagName === "DETAILS") of.open = true;
  }
  addEventListener("hashchange", open);
  open();
})();
