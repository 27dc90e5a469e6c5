"use strict";
// Buttons that copy, and tables that sort and filter. What the page holds is set as text, never as HTML.
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "copied";
    } catch {  // a page opened from a file may not reach the clipboard: mark the text for Ctrl+C instead
      getSelection().selectAllChildren(source);
      button.textContent = "marked: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2500);
  });
}
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const empty = (row) => value(row).trim() === "";
      const compare = (a, b) => {
        const [x, y] = [Number(value(a)), Number(value(b))];
        return Number.isNaN(x) || Number.isNaN(y) ? value(a).localeCompare(value(b)) : x - y;
      };
      // Cells without a value stand last, whichever way the others are sorted.
      body.append(...[...body.rows].sort((a, b) => empty(a) - empty(b) || (empty(a) ? 0 : up ? compare(a, b) : compare(b, a))));
    });
  });
}
for (const input of document.querySelectorAll("input[data-filter]")) {
  const table = document.getElementById(input.dataset.filter);
  const told = document.getElementById(input.getAttribute("aria-describedby"));
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    told.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
  });
}
