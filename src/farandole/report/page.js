"use strict";
// Everything can be read without this: it adds figures on hover, sorting and copying.
(() => {
  const root = document.documentElement;
  root.classList.add("script");

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);

  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 14 + box.width > root.clientWidth - 8;
    const below = event.clientY + 18 + box.height > root.clientHeight - 8;
    tip.style.left = Math.max(8, right ? event.clientX - box.width - 14 : event.clientX + 14) + "px";
    tip.style.top = Math.max(8, below ? event.clientY - box.height - 14 : event.clientY + 18) + "px";
  };
  const hide = () => { tip.hidden = true; };

  // The browser would show a title too, late and in its own style.
  const words = new WeakMap();
  for (const title of document.querySelectorAll("svg title")) {
    words.set(title.parentElement, title.textContent);
    title.parentElement.setAttribute("aria-label", title.textContent);
    title.remove();
  }

  const place = (svg, event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale + svg.viewBox.baseVal.y];
  };
  const seconds = (value) =>
    value >= 1 ? value.toPrecision(3) + " s" : value >= 1e-3 ? (1e3 * value).toPrecision(3) + " ms" : (1e6 * value).toPrecision(3) + " µs";

  const cellOf = (svg, event) => {
    const [left, top, width, height, each, middle] = svg.dataset.heat.split(" ").map(Number);
    svg.rows ??= svg.dataset.rows.split(";").map((row) => row.split(" "));
    svg.ranks ??= svg.dataset.ranks.split(" ").map(Number);
    const [x, y] = place(svg, event);
    const row = Math.floor((y - top) / height);
    const columns = Math.max(...svg.rows.map((found) => found.length));
    const column = Math.floor(((x - left) / width) * columns);
    const value = svg.rows[row]?.[column];
    if (column < 0 || !value) return null;
    const last = (svg.ranks[row + 1] ?? svg.ranks[row] + 1) - 1;
    const ranks = last > svg.ranks[row] ? `ranks ${svg.ranks[row]}–${last}, the slowest` : `rank ${svg.ranks[row]}`;
    const steps = each > 1 ? `steps ${column * each + 1}–${(column + 1) * each}, mean` : `step ${column + 1}`;
    return `${ranks}\n${steps}\n${seconds(Number(value))}, ${(value / middle).toFixed(2)} × the median`;
  };
  const moveCursor = (svg, event) => {
    const [left, width, end] = svg.dataset.time.split(" ").map(Number);
    const [x] = place(svg, event);
    const inside = x >= left && x <= left + width;
    const cursor = svg.querySelector(".cursor");
    for (const side of ["x1", "x2"]) cursor.setAttribute(side, x);
    cursor.setAttribute("visibility", inside ? "visible" : "hidden");
    return inside ? `at ${(((x - left) / width) * end).toPrecision(4)} s` : null;
  };

  document.addEventListener("pointermove", (event) => {
    const svg = event.target.closest?.("svg");
    if (!svg) return hide();
    const at = svg.dataset.time ? moveCursor(svg, event) : null;
    const told = [words.get(event.target), at].filter(Boolean).join("\n") || (svg.dataset.heat && cellOf(svg, event));
    if (told) show(told, event);
    else hide();
  });
  document.addEventListener("pointerleave", hide);
  document.addEventListener("scroll", hide, { passive: true });

  const valueOf = (row, column) => {
    const text = row.cells[column].dataset.v;
    return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  };
  const compare = (one, other) => (typeof one === typeof other ? (one < other ? -1 : one > other ? 1 : 0) : typeof one === "number" ? -1 : 1);
  const sort = (heading) => {
    const table = heading.closest("table");
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, heading.cellIndex), row]);
    // What is not known stays below, whichever way.
    rows.sort(([one], [other]) => (one === null || other === null ? (one === null) - (other === null) : (up ? 1 : -1) * compare(one, other)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };

  const contentOf = (table) => [
    [...table.tHead.rows[0].cells].map((cell) => cell.dataset.name),
    ...[...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.dataset.v)),
  ];
  const csv = (rows) => rows.map((row) => row.map((text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)).join(",")).join("\n") + "\n";
  const written = { "\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "→": "$\\to$", "×": "$\\times$", "–": "--", "\u202f": "\\," };
  const escaped = (text) => text.replace(/[\\^~→×–\u202f&%$#_{}]/g, (letter) => written[letter] ?? "\\" + letter);
  const latex = ([head, ...rows], caption) => {
    const line = (cells) => cells.map((text) => escaped(text) || "--").join(" & ") + " \\\\";
    const columns = head.map((_, at) => (rows.every((row) => row[at] === "" || !Number.isNaN(Number(row[at]))) ? "r" : "l")).join("");
    return [
      "\\begin{table}", "\\centering", `\\caption{${escaped(caption)}}`, `\\begin{tabular}{${columns}}`,
      "\\toprule", line(head), "\\midrule", ...rows.map(line), "\\bottomrule", "\\end{tabular}", "\\end{table}", "",
    ].join("\n");
  };
  const captionOf = (table) => {
    const note = document.getElementById(`${table.id}-note`)?.textContent ?? "";
    return `${table.closest("section").querySelector("h2").textContent}. ${note}`.trim();
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Not every browser lets a page that is no website use the clipboard.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button");
    if (!button) return;
    const heading = button.closest("th");
    if (heading) return sort(heading);
    const { copy: kind, table, text } = button.dataset;
    const found = table && document.getElementById(table);
    await copy(!found ? text : kind === "csv" ? csv(contentOf(found)) : latex(contentOf(found), captionOf(found)));
    button.dataset.label ??= button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = button.dataset.label; }, 1200);
  });
})();
