// A table of any number of rows. Only those in sight exist, and only the pages around them are fetched.
'use strict';

const ROW = 37; // pixels, as in view.css
const FETCHED = 200; // rows of one request

class RowTable {
  // columns: [name, title, cell(row), sort?]; fetchRows(offset, limit) gives {total, rows}; pathOf(row, place) a link.
  constructor({ columns, fetchRows, pathOf, onSort, label }) {
    Object.assign(this, { columns, fetchRows, pathOf, onSort });
    this.rows = new Map();
    this.asked = new Map();
    this.total = 0;
    this.chosen = 0;
    this.sort = { by: '', descending: false };
    this.heads = el('div.row.heads', { role: 'row' }, columns.map((column) => this.head(column)));
    this.space = el('div.space', { role: 'presentation' });
    this.scroll = el('div.scroll', { role: 'rowgroup', onscroll: () => this.draw() }, this.space);
    this.node = el('div.table', { role: 'grid', tabindex: '0', 'aria-label': label, onkeydown: (event) => this.key(event) }, this.heads, this.scroll);
    new ResizeObserver(() => this.draw()).observe(this.scroll);
  }

  head([name, title, , sortable]) {
    if (!sortable) return el('div', { role: 'columnheader', class: `c-${name}` }, title);
    const button = el('button', { type: 'button', tabindex: '-1', onclick: () => this.sortBy(name) }, title);
    return el('div', { role: 'columnheader', class: `c-${name}`, 'data-sort': name }, button);
  }

  sortBy(name) {
    const again = this.sort.by === name;
    if (again && this.sort.descending === (name !== 'reward')) this.sort = { by: '', descending: false };
    else this.sort = { by: name, descending: again ? !this.sort.descending : name === 'reward' };
    this.onSort(this.sort);
  }

  showSort(sort) {
    this.sort = sort;
    for (const head of this.heads.children) {
      const mine = head.dataset.sort && head.dataset.sort === sort.by;
      head.setAttribute('aria-sort', mine ? (sort.descending ? 'descending' : 'ascending') : 'none');
    }
  }

  // Asks again for what is in sight. Rows that are there stay until the new ones come.
  async refresh({ reset = false } = {}) {
    if (reset) {
      this.rows.clear();
      this.chosen = 0;
      this.scroll.scrollTop = 0;
    }
    this.asked.clear();
    const first = Math.floor(this.scroll.scrollTop / ROW / FETCHED) * FETCHED;
    await this.ask(first);
    this.draw();
  }

  async ask(offset) {
    if (this.asked.has(offset)) return;
    const mark = {};
    this.asked.set(offset, mark);
    let answer;
    try {
      answer = await this.fetchRows(offset, FETCHED);
    } catch (error) {
      if (this.asked.get(offset) === mark) this.asked.delete(offset); // so that the next look asks again
      throw error;
    }
    if (this.asked.get(offset) !== mark || !answer) return;
    this.total = answer.total;
    this.node.setAttribute('aria-rowcount', String(answer.total + 1));
    this.space.style.height = `${answer.total * ROW}px`;
    answer.rows.forEach((row, place) => this.rows.set(offset + place, row));
    for (const place of this.rows.keys()) if (place >= this.total) this.rows.delete(place);
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - 5);
    const last = Math.min(this.total, first + Math.ceil(this.scroll.clientHeight / ROW) + 10);
    const nodes = [];
    for (let place = first; place < last; place += 1) {
      const row = this.rows.get(place);
      if (row) nodes.push(this.line(row, place));
      else this.ask(Math.floor(place / FETCHED) * FETCHED).catch(failed);
    }
    if (!this.total) nodes.push(el('p.empty', null, 'No rollout is listed.'));
    this.space.replaceChildren(...nodes);
    this.node.setAttribute('aria-activedescendant', `row-${this.chosen}`);
  }

  line(row, place) {
    const cells = this.columns.map(([name, , cell]) => el('div', { role: 'gridcell', class: `c-${name}` }, cell(row)));
    return el('a.row', {
      role: 'row', id: `row-${place}`, href: this.pathOf(row, place), tabindex: '-1', 'aria-rowindex': String(place + 2),
      class: place === this.chosen ? 'chosen' : '', style: { top: `${place * ROW}px` },
      onclick: () => { this.chosen = place; },
    }, cells);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.scroll.clientHeight / ROW) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -this.total, End: this.total };
    if (event.target !== this.node || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Enter') {
      const row = this.rows.get(this.chosen);
      if (row) location.hash = this.pathOf(row, this.chosen);
    } else if (event.key in steps && this.total) {
      this.chosen = Math.min(this.total - 1, Math.max(0, this.chosen + steps[event.key]));
      const top = this.chosen * ROW;
      if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
      if (top + ROW > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = top + ROW - this.scroll.clientHeight;
      this.draw();
    } else return;
    event.preventDefault();
  }
}
