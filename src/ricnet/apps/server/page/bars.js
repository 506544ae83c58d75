// A bar per class; its length is the probability. With many classes: the answer, its rival, and the classes with the
// highest probability at any step.

import { percent } from "./thought.js";

const MOST = 12;

export class Bars {
  constructor(list) {
    this.list = list;
  }

  open(thought) {
    this.thought = thought;
    this.shown = chosen(thought);
    this.rows = this.shown.map(k => row(thought.classes[k], thought.beliefs[thought.last][k]));
    const longest = Math.max(...this.shown.map(k => thought.classes[k].length));
    this.list.style.setProperty("--names", `${Math.min(longest, 14) * 0.62 + 0.4}rem`);
    this.list.replaceChildren(...this.rows);
  }

  show(step) {
    const { thought } = this;
    const leader = thought.leader(step);
    this.rows.forEach((item, place) => {
      const k = this.shown[place];
      const share = thought.beliefs[step][k];
      const part = k === thought.first ? "first" : k === thought.second ? "second" : ""; // the colours of the chart
      item.className = `${part} ${k === leader ? "leads" : ""}`;
      item.querySelector(".fill").style.transform = `scaleX(${share})`;
      item.querySelector(".share").textContent = percent(share);
    });
  }
}

// In class order if all fit, so that a class keeps its place.
function chosen(thought) {
  const all = thought.classes.map((_, k) => k);
  if (all.length <= MOST) return all;
  const peak = k => Math.max(...thought.beliefs.slice(1).map(belief => belief[k]));
  const rest = all.filter(k => k !== thought.first && k !== thought.second).sort((a, b) => peak(b) - peak(a));
  return [thought.first, thought.second, ...rest].slice(0, MOST);
}

function row(name, last) {
  const item = document.createElement("li");
  for (const part of ["name", "track", "share"]) item.append(span(part));
  item.children[0].textContent = name;
  item.children[0].title = name;
  item.children[1].append(span("fill"), span("last"));
  item.querySelector(".last").style.left = percent(last).replace(" ", "");
  return item;
}

function span(name) {
  const element = document.createElement("span");
  element.className = name;
  return element;
}
