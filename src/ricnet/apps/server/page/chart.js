// All steps of an answer: above, the probabilities; below, the value (the expected gain of further steps) and where it
// falls below the threshold and the model stops.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 52, RIGHT = 10, TOP = 22, BELIEF = 108, GAP = 36, VALUE = 96, FOOT = 42;

export class Chart {
  constructor(place, go) {
    this.place = place;
    this.go = go;
    new ResizeObserver(() => this.thought && this.draw()).observe(place);
  }

  open(thought) {
    this.thought = thought;
    this.step = 0;
    this.draw();
  }

  draw() {
    const { thought } = this;
    this.width = Math.max(this.place.clientWidth, 240);
    const line = thought.values ?? thought.chances;
    const height = TOP + BELIEF + (line ? GAP + VALUE : 0) + FOOT;
    const svg = make("svg", { viewBox: `0 0 ${this.width} ${height}`, height, role: "img", "aria-label": words(thought) });
    this.marks = null;
    this.drawBelief(svg);
    if (line) this.drawLine(svg, line);
    this.floor = height - FOOT;
    this.drawSteps(svg, height);
    svg.addEventListener("pointerdown", event => this.follow(event, svg));
    svg.addEventListener("pointermove", event => event.buttons && this.follow(event, svg));
    this.place.replaceChildren(svg);
    this.show(this.step);
  }

  x(step) {
    return LEFT + (step * (this.width - LEFT - RIGHT)) / this.thought.last;
  }

  drawBelief(svg) {
    const { thought } = this;
    const y = share => TOP + BELIEF * (1 - share);
    const area = (bottom, top) => {
      const there = thought.beliefs.map((b, n) => `${this.x(n)},${y(top(b))}`);
      const back = thought.beliefs.map((b, n) => `${this.x(n)},${y(bottom(b))}`).reverse();
      return [...there, ...back].join(" ");
    };
    svg.append(
      make("polygon", { class: "others", points: area(() => 0, () => 1) }),
      make("polygon", { class: "first", points: area(() => 0, b => b[thought.first]) }),
      make("polygon", { class: "second", points: area(b => 1 - b[thought.second], () => 1) }),
      label("100 %", LEFT - 7, y(1) + 9, "end"),
      label("0", LEFT - 7, y(0), "end"),
    );
  }

  // Values are large at first and small near the halt, so their square roots are drawn; probabilities are drawn as they are.
  drawLine(svg, line) {
    const { thought } = this;
    const isValue = line === thought.values;
    const bend = v => (isValue ? Math.sign(v) * Math.sqrt(Math.abs(v)) : v);
    const stops = isValue && thought.threshold !== null;
    const zero = stops ? thought.threshold : 0;
    const high = Math.max(...line, zero), low = Math.min(...line, zero);
    const span = bend(high) - bend(low) || 1;
    const top = TOP + BELIEF + GAP;
    const y = v => top + (VALUE * (bend(high) - bend(v))) / span;
    const at = n => (isValue ? n : n + 1); // a value belongs to the state after n steps, a probability to step n + 1
    const points = line.map((v, n) => [this.x(at(n)), y(v)]);
    svg.append(
      ...(stops ? [side(points, y(zero), "above"), side(points, y(zero), "below")] : []),
      make("line", { class: "zero", x1: LEFT, x2: this.width - RIGHT, y1: y(zero), y2: y(zero) }),
      make("polyline", { class: "value", points: points.map(p => p.join(",")).join(" ") }),
      ...ticks([high, zero, low], y, bend),
    );
    const crossing = isValue && thought.stoppedByItself() ? y(thought.value(thought.halt)) : null;
    const title = isValue ? "Expected gain, in nats (root scale)" : "Probability of stopping";
    this.marks = { points, offset: at(0), crossing, title };
  }

  drawSteps(svg, height) {
    const { thought, floor } = this;
    const every = [1, 2, 5, 10, 20, 50].find(n => (thought.last / n) * 22 <= this.width - LEFT - RIGHT) ?? 100;
    for (let n = 0; n <= thought.last; n += every) svg.append(label(n, this.x(n), floor + 18, "middle"));
    svg.append(label("step", LEFT - 14, floor + 18, "end"));
    this.drawStop(svg, height);
    this.cursor = make("line", { class: "cursor", y1: TOP, y2: floor });
    this.dot = make("circle", { class: "dot", r: 4.5 });
    svg.append(this.cursor, this.dot);
    const crossing = this.marks?.crossing;
    if (crossing != null) svg.append(make("circle", { class: "crossing", r: 5, cx: this.x(thought.halt), cy: crossing }));
    svg.append(label("Probability", LEFT, TOP - 8, "start", "word"));
    if (this.marks) svg.append(label(this.marks.title, LEFT, TOP + BELIEF + GAP - 10, "start", "word"));
  }

  // Steps after the halt are pale.
  drawStop(svg, height) {
    const { thought, floor } = this;
    const stop = this.x(thought.halt);
    const bands = [[TOP - 1, BELIEF + 2], ...(this.marks ? [[floor - VALUE - 3, VALUE + 5]] : [])];
    this.veils = bands.map(([y, height]) => make("rect", { class: "after", y, height }));
    const late = stop > this.width - 40;
    const word = thought.stoppedByItself() ? "stops" : "last step";
    svg.append(
      ...this.veils,
      make("line", { class: "stop", x1: stop, x2: stop, y1: TOP - 3, y2: floor + 4 }),
      label(word, late ? this.width - 2 : stop, height - 4, late ? "end" : "middle", "stop-word word"),
    );
  }

  // While the steps are played, later ones are hidden.
  show(step, coming = false) {
    this.step = step;
    this.place.classList.toggle("coming", coming);
    const x = this.x(step), from = coming ? x : this.x(this.thought.halt);
    for (const veil of this.veils) set(veil, { x: from, width: Math.max(0, this.width - RIGHT - from + 1) });
    set(this.cursor, { x1: x, x2: x });
    const point = this.marks?.points[step - this.marks.offset];
    set(this.dot, point ? { cx: point[0], cy: point[1], visibility: "visible" } : { visibility: "hidden" });
  }

  follow(event, svg) {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.width;
    this.go(Math.round(((x - LEFT) / (this.width - LEFT - RIGHT)) * this.thought.last));
  }
}

// The area between the line and the threshold, on one side of it; edges are cut where the line crosses.
function side(points, zero, name) {
  const keep = y => (name === "above" ? Math.min(y, zero) : Math.max(y, zero));
  const path = [];
  points.forEach(([x, y], n) => {
    const [before, was] = points[n - 1] ?? [x, y];
    if ((was - zero) * (y - zero) < 0) path.push([before + ((x - before) * (zero - was)) / (y - was), zero]);
    path.push([x, keep(y)]);
  });
  const ends = [[points.at(-1)[0], zero], [points[0][0], zero]];
  return make("polygon", { class: name, points: [...path, ...ends].map(p => p.join(",")).join(" ") });
}

// At least a line of text apart.
function ticks(values, y, bend) {
  const kept = [];
  for (const v of [values[1], values[0], values[2]]) {
    if (Number.isFinite(bend(v)) && kept.every(w => Math.abs(y(w) - y(v)) > 13)) kept.push(v);
  }
  return kept.map(v => label(String(Number(v.toPrecision(2))).replace("-", "−"), LEFT - 7, y(v) + 3, "end"));
}

function words(thought) {
  const belief = thought.beliefs.map(b => Math.round(100 * b[thought.first]));
  const how = thought.stoppedByItself() ? `It stops after step ${thought.halt}` : "It takes every step";
  return `Belief in ${thought.classes[thought.first]} after each step, in percent: ${belief.join(", ")}. ${how}.`;
}

function make(tag, attributes) {
  return set(document.createElementNS(SVG, tag), attributes);
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function label(text, x, y, anchor, name = "") {
  const element = make("text", { x, y, "text-anchor": anchor, class: name });
  element.textContent = text;
  return element;
}
