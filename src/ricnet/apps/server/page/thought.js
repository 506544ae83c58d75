// One answer with all its steps. Step 0 is the uniform belief before the first step.

export class Thought {
  constructor(answer, model, truth = null, budget = null) {
    const { classes } = model;
    this.classes = classes;
    this.truth = truth;
    this.beliefs = [classes.map(() => 1 / classes.length), ...answer.beliefs];
    this.values = answer.values;
    this.chances = answer.halt_probability;
    this.threshold = (budget ?? model).halt_threshold ?? null; // null: it takes every step
    this.halt = answer.steps;
    this.last = answer.beliefs.length;
    this.costs = model.costs;
    this.first = classes.indexOf(answer.answer);
    this.second = this.strongestRival();
  }

  // The most probable class at the halt other than the answer.
  strongestRival() {
    const belief = this.beliefs[this.halt];
    return this.classes.map((_, k) => k).filter(k => k !== this.first).reduce((a, b) => (belief[b] > belief[a] ? b : a));
  }

  // The most probable class after a step; null before the first.
  leader(step) {
    const belief = this.beliefs[step];
    return step ? belief.indexOf(Math.max(...belief)) : null;
  }

  said(step) {
    const k = this.leader(step);
    return k === null ? null : { name: this.classes[k], share: this.beliefs[step][k], right: this.truth === null ? null : this.classes[k] === this.truth };
  }

  // The value after a step; null after the last.
  value(step) {
    return this.values?.[step] ?? null;
  }

  // With exits, the share of compute up to this step.
  work(step) {
    return this.costs ? `, ${Math.round(100 * this.costs[step - 1])} % of compute` : "";
  }

  stoppedByItself() {
    return this.halt < this.last;
  }
}

export function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

export function steps(count) {
  return count === 1 ? "1 step" : `${count} steps`;
}
