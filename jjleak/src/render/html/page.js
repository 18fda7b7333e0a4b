// The flame graph. Names come from the profiled program: they are only used as text, never as markup.
"use strict";
(() => {
  const ROW = 19, NARROWEST = 0.6, LABEL_FROM = 28;
  const data = JSON.parse(document.getElementById("data").textContent);
  const flame = document.getElementById("flame"), tip = document.getElementById("tip");
  const search = document.getElementById("search"), matched = document.getElementById("matched");
  const reset = document.getElementById("reset");
  const byVerdict = document.getElementById("verdict"), link = document.getElementById("link");
  const LEAKING = 0;
  const leaks = data.stacks.some(([, , , verdict]) => verdict === LEAKING);
  const state = { by: data.by, inverted: data.inverted, verdicts: false, zoom: null, found: null, root: null };

  // A node: the index of its name, bytes and objects below it, its children, its parent, bytes by verdict, and bytes and objects before
  // and after.
  const node = (name, parent) =>
    ({ name, parent, bytes: 0, objects: 0, children: new Map(), verdicts: data.verdicts.map(() => 0), sides: [0, 0, 0, 0] });

  function merge() {
    const root = node(-1, null);
    data.stacks.forEach(([frames, bytes, objects, verdict], index) => {
      let at = root;
      const add = (it) => {
        it.bytes += bytes;
        it.objects += objects;
        it.verdicts[verdict] += bytes;
        if (data.changes) data.changes.stacks[index].forEach((figure, side) => { it.sides[side] += figure; });
      };
      add(root);
      const path = state.inverted ? frames : frames.slice().reverse();
      for (const name of path) {
        if (!at.children.has(name)) at.children.set(name, node(name, at));
        at = at.children.get(name);
        add(at);
      }
    });
    return root;
  }

  const value = (it) => it[state.by];
  const label = (it) => (it.name < 0 ? data.everything : data.names[it.name][0]);
  // The verdict on most bytes below a node.
  const verdict = (it) => it.verdicts.indexOf(Math.max(...it.verdicts));
  // Before and after by the current measure.
  const sides = (it) => (state.by === "bytes" ? [it.sides[0], it.sides[2]] : [it.sides[1], it.sides[3]]);
  // Index of a change among the names and shades: new, grew, shrank, gone, same.
  const change = ([before, after]) => (before === after ? 4 : !before ? 0 : !after ? 3 : after > before ? 1 : 2);
  const shade = (it) => {
    const [before, after] = sides(it);
    const [weak, strong] = data.changes.shades[change([before, after])];
    const part = Math.abs(after - before) / Math.max(before, after, 1);
    return `rgb(${weak.map((from, index) => Math.round(from + (strong[index] - from) * part)).join(",")})`;
  };
  const color = (it) => {
    if (it.name < 0) return data.root;
    if (data.changes) return shade(it);
    return state.verdicts ? data.verdicts[verdict(it)][1] : data.kinds[data.names[it.name][1]][1];
  };
  const grouped = (number) => number.toLocaleString("en-US");
  const humane = (bytes) => {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (bytes >= 1023.95 && unit < units.length - 1) { bytes /= 1024; unit++; }
    return unit ? `${bytes.toFixed(1)} ${units[unit]}` : `${bytes} bytes`;
  };
  const percent = (part, whole) => `${(whole ? (100 * part) / whole : 0).toFixed(2)} %`;

  // Depth of the visible nodes below a node, which determines the height of the picture.
  function depth(it, scale) {
    let deepest = 0;
    for (const child of it.children.values()) {
      if (value(child) * scale >= NARROWEST) deepest = Math.max(deepest, depth(child, scale));
    }
    return 1 + deepest;
  }

  function place(it, left, width, row, rows, above) {
    const box = document.createElement("div");
    box.style.left = `${left}px`;
    box.style.width = `${Math.max(width - 0.5, 0.5)}px`;
    box.style.top = `${(state.inverted ? row : rows - 1 - row) * ROW}px`;
    box.style.background = color(it);
    if (width < 10) box.style.padding = "0";
    if (width >= LABEL_FROM) box.textContent = label(it);
    if (above) box.classList.add("above");
    if (it.name >= 0 && verdict(it) === LEAKING) box.classList.add("leaks");
    if (it.name >= 0 && state.found && state.found(data.names[it.name])) box.classList.add("found");
    box.node = it;
    flame.append(box);
  }

  function draw() {
    const focus = state.zoom || state.root, width = flame.clientWidth;
    const path = [];
    for (let it = focus.parent; it; it = it.parent) path.unshift(it);
    const scale = value(focus) ? width / value(focus) : 0;
    const rows = path.length + depth(focus, scale);
    flame.replaceChildren();
    flame.style.height = `${rows * ROW}px`;
    path.forEach((it, row) => place(it, 0, width, row, rows, true));
    const all = [[focus, 0, path.length]];
    while (all.length) {
      const [it, left, row] = all.pop();
      const own = value(it) * scale;
      if (own < NARROWEST) continue;
      place(it, left, own, row, rows, false);
      let at = left;
      const children = [...it.children.values()].sort((a, b) => label(a) < label(b) ? -1 : 1);
      for (const child of children) {
        all.push([child, at, row + 1]);
        at += value(child) * scale;
      }
    }
    reset.disabled = !state.zoom;
    count();
  }

  // Live amount of stacks with a matching frame; each stack counts once.
  function count() {
    if (!state.found) { matched.textContent = ""; return; }
    const hits = data.names.map((name) => state.found(name));
    let sum = 0, whole = 0;
    for (const [frames, bytes, objects] of data.stacks) {
      const amount = state.by === "bytes" ? bytes : objects;
      whole += amount;
      if (frames.some((name) => hits[name])) sum += amount;
    }
    matched.textContent = `matched: ${percent(sum, whole)}, ${state.by === "bytes" ? humane(sum) : grouped(sum) + " objects"}`;
  }

  function look() {
    const text = search.value;
    let matches = null;
    if (text) {
      try {
        const expression = new RegExp(text, "i");
        matches = (it) => expression.test(it);
      } catch {
        matches = (it) => it.toLowerCase().includes(text.toLowerCase());
      }
    }
    state.found = matches && (([name, , module]) => matches(name) || matches(module));
    draw();
    remember();
  }

  const signed = (delta, text) => `${delta < 0 ? "−" : "+"}${text(Math.abs(delta))}`;
  // What has become of a node.
  function changed(it) {
    const [bytesBefore, objectsBefore, bytesAfter, objectsAfter] = it.sides;
    return [`${data.changes.names[change(sides(it))]}: ${signed(bytesAfter - bytesBefore, humane)}, ${signed(objectsAfter - objectsBefore, grouped)} objects`,
      `before: ${humane(bytesBefore)}, ${grouped(objectsBefore)} objects`, `after: ${humane(bytesAfter)}, ${grouped(objectsAfter)} objects`];
  }

  function tell(event) {
    const it = event.target.node;
    tip.hidden = !it;
    if (!it) return;
    const name = document.createElement("b");
    name.textContent = label(it);
    const line = (text) => {
      const span = document.createElement("span");
      span.textContent = text;
      return span;
    };
    const judged = it.verdicts.map((bytes, index) => [bytes, data.verdicts[index][0]]).filter(([bytes]) => bytes);
    const lines = data.changes ? changed(it).map(line) : [line(`${grouped(it.bytes)} bytes${it.bytes >= 1024 ? ` (${humane(it.bytes)})` : ""}, ${grouped(it.objects)} objects`),
      line(`${percent(value(it), value(state.root))} of all ${data.figure} ${state.by}`)];
    if (byVerdict) lines.push(line(judged.map(([bytes, name]) => `${name}: ${humane(bytes)}`).join(", ")));
    if (it.name >= 0) {
      const [, kind, module] = data.names[it.name];
      lines.unshift(line(module ? `${data.kinds[kind][0]}, ${module}` : data.kinds[kind][0]));
    }
    tip.replaceChildren(name, ...lines);
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
    const low = event.clientY + 18 + tip.offsetHeight > innerHeight;
    tip.style.left = `${Math.max(4, right ? event.clientX - tip.offsetWidth - 8 : event.clientX + 14)}px`;
    tip.style.top = `${Math.max(4, low ? event.clientY - tip.offsetHeight - 8 : event.clientY + 16)}px`;
  }

  function zoom(it) {
    state.zoom = it && it.parent ? it : null;
    tip.hidden = true;
    draw();
    remember();
  }

  // What is shown, as the page's fragment: a link leads to the same frame.
  function remember() {
    const path = [];
    for (let it = state.zoom; it && it.parent; it = it.parent) path.unshift(it.name);
    const shown = new URLSearchParams();
    if (path.length) shown.set("frame", path.join("."));
    if (state.by !== data.by) shown.set("by", state.by);
    if (state.inverted !== data.inverted) shown.set("inverted", state.inverted ? "1" : "0");
    if (state.verdicts !== leaks) shown.set("verdicts", state.verdicts ? "1" : "0");
    if (search.value) shown.set("search", search.value);
    const fragment = shown.toString();
    if (fragment !== location.hash.slice(1)) history.replaceState(null, "", fragment ? `#${fragment}` : "#");
  }

  function restore() {
    const shown = new URLSearchParams(location.hash.slice(1));
    const flag = (name, otherwise) => (shown.has(name) ? shown.get(name) === "1" : otherwise);
    if (["bytes", "objects"].includes(shown.get("by"))) state.by = shown.get("by");
    state.inverted = flag("inverted", data.inverted);
    state.verdicts = Boolean(byVerdict) && flag("verdicts", leaks);
    search.value = shown.get("search") || "";
    rebuild();
    let it = state.root;
    for (const name of (shown.get("frame") || "").split(".").filter(Boolean)) {
      it = it.children.get(Number(name));
      if (!it) return;
    }
    if (it.parent) state.zoom = it;
    look();
  }

  function press(button, is) { button.setAttribute("aria-pressed", is ? "true" : "false"); }

  function rebuild() {
    state.zoom = null;
    state.root = merge();
    for (const button of document.querySelectorAll("button[data-by]")) press(button, button.dataset.by === state.by);
    press(document.getElementById("invert"), state.inverted);
    if (byVerdict) press(byVerdict, state.verdicts);
    if (byVerdict) document.getElementById("marks").hidden = !state.verdicts;
    document.getElementById("kinds").hidden = state.verdicts;
    draw();
    remember();
  }

  flame.addEventListener("mousemove", tell);
  flame.addEventListener("mouseleave", () => { tip.hidden = true; });
  flame.addEventListener("click", (event) => { if (event.target.node) zoom(event.target.node); });
  search.addEventListener("input", look);
  reset.addEventListener("click", () => zoom(null));
  document.getElementById("invert").addEventListener("click", () => { state.inverted = !state.inverted; rebuild(); });
  for (const button of document.querySelectorAll("button[data-by]")) {
    button.addEventListener("click", () => { state.by = button.dataset.by; rebuild(); });
  }
  if (byVerdict) byVerdict.addEventListener("click", () => { state.verdicts = !state.verdicts; rebuild(); });
  link.addEventListener("click", async () => {
    // Without permission, the address bar has the link.
    try { await navigator.clipboard.writeText(location.href); } catch { return; }
    link.textContent = "Copied";
    setTimeout(() => { link.textContent = "Copy link"; }, 2000);
  });
  addEventListener("hashchange", restore);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
    if (event.key === "Escape") { search.value = ""; zoom(null); look(); search.blur(); }
  });
  addEventListener("resize", draw);
  addEventListener("beforeprint", draw);
  restore();
})();
