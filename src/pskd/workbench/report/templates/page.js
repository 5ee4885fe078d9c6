"use strict";
// A click on a column's title sorts its table, by number if cells have one, else by text. A second click reverses it.
for (const table of document.querySelectorAll("table.sortable")) {
  const titles = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column], text = cell.dataset.value ?? cell.textContent.trim();
    return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  titles.forEach((title, column) => title.addEventListener("click", () => {
    const upwards = title.getAttribute("aria-sort") !== "ascending";
    titles.forEach((other) => other.removeAttribute("aria-sort"));
    title.setAttribute("aria-sort", upwards ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => (upwards ? 1 : -1) * compare(key(a, column), key(b, column)));
    table.tBodies[0].append(...rows);
  }));
}

// Buttons show intervals and, on narrow screens, the less important columns.
for (const button of document.querySelectorAll(".tools button")) {
  const wide = button.parentElement.nextElementSibling;
  button.addEventListener("click", () => {
    const on = wide.classList.toggle(button.className);
    button.setAttribute("aria-pressed", on);
  });
}

// A link into a folded part opens it.
const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  target?.closest("details")?.setAttribute("open", "");
};
addEventListener("hashchange", unfold);
unfold();

// A figure is saved as it is, in black.
for (const link of document.querySelectorAll("a.save")) {
  link.addEventListener("click", () => {
    const drawn = link.closest("figure").querySelector("svg").cloneNode(true), { width, height } = drawn.viewBox.baseVal;
    drawn.removeAttribute("data-hover");
    for (const [name, value] of Object.entries({ width: `${width}pt`, height: `${height}pt`, color: "black", "font-family": "sans-serif" })) drawn.setAttribute(name, value);
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(drawn)], { type: "image/svg+xml" }));
  });
}

// Shows the value of the point or square that is nearest to the pointer.
const hover = document.getElementById("hover"), REACH = 16;
const points = (svg, id) => {
  const numbers = (svg.querySelector(`[id$="-${id}"] path`)?.getAttribute("d").match(/-?[\d.]+/g) ?? []).map(Number);
  return numbers.flatMap((x, place) => (place % 2 ? [] : [[x, numbers[place + 1]]]));
};
const shown = (value) => String(Number(value.toPrecision(4)));
for (const svg of document.querySelectorAll("svg[data-hover]")) {
  let about = null;
  const read = () => {
    about = JSON.parse(svg.dataset.hover);
    about.points = Object.entries(about.lines).map(([id, line]) => ({ ...line, places: points(svg, id) }));
  };
  const inCell = (x, y) => {
    const [left, bottom, right, top] = about.box, { names, values } = about.cells;
    const column = Math.floor((x - left) / (right - left) * names.length), row = Math.floor((y - top) / (bottom - top) * names.length);
    return values[row]?.[column] === undefined ? "" : `${names[row]} taken for ${names[column]}: ${values[row][column]}`;
  };
  const nearest = (x, y) => {
    let text = "", least = REACH;
    for (const { name, notes, places } of about.points) {
      places.forEach(([px, py], place) => {
        const distance = Math.hypot(px - x, py - y);
        if (distance >= least) return;
        least = distance;
        const [left, bottom, right, top] = about.box, [across, up] = about.limits;
        const own = across[0] + (px - left) / (right - left) * (across[1] - across[0]);
        const value = up[0] + (py - bottom) / (top - bottom) * (up[1] - up[0]);
        const note = notes[place] ? `, ${notes[place]}` : "";
        text = `${name}: ${shown(value)} (${about.x} ${about.x === "epoch" ? Math.round(own) : shown(own)}${note})`;
      });
    }
    return text;
  };
  svg.addEventListener("pointermove", (event) => {
    if (about === null) read();
    const frame = svg.getBoundingClientRect(), { width } = svg.viewBox.baseVal, scale = width / frame.width;
    const x = (event.clientX - frame.left) * scale, y = (event.clientY - frame.top) * scale;
    hover.textContent = about.cells ? inCell(x, y) : nearest(x, y);
    hover.hidden = !hover.textContent;
    hover.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - hover.offsetWidth - 4))}px`;
    hover.style.top = `${Math.max(4, event.clientY - hover.offsetHeight - 10)}px`;
  });
  svg.addEventListener("pointerleave", () => { hover.hidden = true; });
}
