// The step on display. Play runs to the halt, and from there to the last step. A new answer is played once
// automatically; that can be skipped.

const PACE = 420; // milliseconds a step, at most
const REPLAY = 1500; // milliseconds for all steps of a new answer

export class Player {
  constructor(show) {
    this.show = show;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.step = 0;
    this.timer = null;
    this.unasked = false; // whether it plays automatically
  }

  get playing() {
    return this.timer !== null;
  }

  open(thought) {
    this.stop();
    this.thought = thought;
    if (this.still.matches || thought.last === 1) {
      this.go(thought.halt);
    } else {
      this.step = 0;
      this.play(REPLAY);
    }
  }

  go(step) {
    this.step = Math.min(Math.max(step, 0), this.thought.last);
    this.show(this);
  }

  play(within = Infinity) {
    if (this.step === this.thought.last) this.step = 0;
    this.until = this.step < this.thought.halt ? this.thought.halt : this.thought.last;
    this.unasked = within < Infinity;
    this.timer = setInterval(() => this.advance(), Math.min(PACE, within / (this.until - this.step)));
    this.show(this);
  }

  advance() {
    if (this.step + 1 >= this.until) this.stop();
    this.go(this.step + 1);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
  }

  pause() {
    this.stop();
    if (this.thought) this.show(this);
  }

  toggle() {
    if (!this.playing) this.play();
    else if (this.unasked) this.jump(this.thought.halt);
    else this.pause();
  }

  jump(step) {
    this.pause();
    this.go(step);
  }
}
