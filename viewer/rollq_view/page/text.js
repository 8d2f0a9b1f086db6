// Elements and texts. Words of models, users and tools only ever become text nodes: nothing here parses HTML.
'use strict';

const LONGEST_TEXT = 20000; // characters of a text that are shown at once
// Controls, direction overrides, invisible characters and halves of surrogate pairs: shown as what they are.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb]|\udb40[\udc00-\udfff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function el(tag, given, ...children) {
  const [name, ...classes] = tag.split('.');
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(' ');
  for (const [key, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === 'class') node.className += ' ' + value;
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'style') for (const [property, to] of Object.entries(value)) node.style.setProperty(property, to);
    else node.setAttribute(key, value === true ? '' : value);
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) node.append(child);
    else addText(node, String(child));
  }
  return node;
}

// Appends a text, with a mark in place of each character that cannot be seen or changes how others are shown.
function addText(node, text) {
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > at) node.append(text.slice(at, match.index));
    const code = match[0].codePointAt(0);
    const name = code < 256 ? '\\x' + code.toString(16).padStart(2, '0') : 'U+' + code.toString(16).toUpperCase();
    const mark = document.createElement('span');
    mark.className = 'unseen';
    mark.textContent = name;
    node.append(mark);
    at = match.index + match[0].length;
  }
  if (at < text.length) node.append(text.slice(at));
}

// A block of text. A long one is cut, with a button that shows the rest.
function block(tag, text) {
  const node = el(tag, { dir: 'auto' });
  if (text.length <= LONGEST_TEXT) {
    addText(node, text);
    return node;
  }
  addText(node, text.slice(0, LONGEST_TEXT));
  const rest = text.length - LONGEST_TEXT;
  const more = el('button.more', { type: 'button', onclick: () => { more.remove(); addText(node, text.slice(LONGEST_TEXT)); } },
    `Show ${count(rest)} more characters`);
  node.append(more);
  return node;
}

function count(value) {
  return value === null || value === undefined ? '–' : Number(value).toLocaleString('en-US');
}

function many(times, what) {
  return `${count(times)} ${what}${times === 1 ? '' : 's'}`;
}

function short(value) {
  if (value === null || value === undefined) return '–';
  if (value < 10000) return count(value);
  return value < 1e6 ? (value / 1e3).toFixed(value < 1e5 ? 1 : 0) + 'k' : (value / 1e6).toFixed(1) + 'M';
}

function fixed(value, digits) {
  return typeof value === 'number' ? value.toFixed(digits) : value === null || value === undefined ? '–' : String(value);
}

function percent(share) {
  return share === null || !isFinite(share) ? '–' : (100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0) + ' %';
}

function rewardText(reward) {
  if (reward === null || reward === undefined) return '–';
  if (typeof reward !== 'number') return String(reward);
  return Number.isInteger(reward) ? reward.toFixed(1) : String(Math.round(reward * 1000) / 1000);
}

function verdictOf(reward) {
  return typeof reward !== 'number' ? 'none' : reward >= 1 - 1e-6 ? 'good' : reward > 0 ? 'partly' : 'bad';
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 0.0005) return '0 s';
  if (seconds < 1) return Math.max(1, Math.round(seconds * 1000)) + ' ms';
  if (seconds < 100) return seconds.toFixed(1) + ' s';
  if (seconds < 6000) return (seconds / 60).toFixed(1) + ' min';
  return (seconds / 3600).toFixed(1) + ' h';
}

function moment(at) {
  return at ? new Date(at * 1000).toLocaleString('sv-SE') : '–';
}

function pill(words, kind) {
  return el('span.pill', { class: kind }, words);
}

const OUTCOMES = {
  done: 'plain', turns: 'warn', length: 'warn', malformed: 'warn', aborted: 'bad', failed: 'bad', dead: 'bad',
  leased: 'live', queued: 'quiet', acked: 'quiet', surplus: 'quiet', unreadable: 'bad',
};
const SAID = { leased: 'playing', acked: 'acknowledged' };

function outcomePill(outcome) {
  return pill(SAID[outcome] || outcome, OUTCOMES[outcome] || 'plain');
}
