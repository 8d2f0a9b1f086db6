// The conversation: messages, calls, results, and each turn's tokens.
'use strict';

const BOUNDS = [-0.1, -0.5, -1, -2]; // logprobs at which a token's shade changes
const MOST_CELLS = 3000;

function shade(logprob) {
  const place = BOUNDS.findIndex((bound) => logprob >= bound);
  return 's' + (place < 0 ? BOUNDS.length : place);
}

function conversation(page) {
  const list = el('ol.conversation', { 'aria-label': 'Conversation' });
  const several = Object.keys(page.tokens.versions).length > 1;
  for (const entry of page.entries) list.append(message(entry, several));
  return list;
}

function message(entry, severalVersions) {
  if (entry.role === 'trace') return el('li.trace', null, el('h2', null, entry.text));
  const sampled = entry.turn !== null;
  const calls = entry.calls.map(callBlock);
  const attributes = { class: classesOf(entry) };
  if (sampled) Object.assign(attributes, { id: `turn-${entry.turn}`, tabindex: '-1' });
  const parts = [messageHead(entry, severalVersions), reasoning(entry)];
  if (entry.role === 'step') parts.push(calls, bodyOf(entry));
  else parts.push(bodyOf(entry), emptyNote(entry), calls);
  parts.push(entry.images.map(image), troubles(entry));
  if (sampled) parts.push(tokenStrip(entry));
  return el('li.message', attributes, ...parts);
}

function classesOf(entry) {
  const classes = [entry.role];
  if (entry.failed) classes.push('failed');
  if (entry.turn !== null) classes.push('sampled');
  return classes.join(' ');
}

function messageHead(entry, severalVersions) {
  const facts = entry.turn === null ? null : turnFacts(entry, severalVersions);
  return el('div.head', null, el('span.role', null, roleOf(entry)), facts, maskedNote(entry));
}

function reasoning(entry) {
  if (!entry.reasoning) return null;
  const attributes = { open: entry.reasoning.length < 2000 };
  const body = block('div.words', entry.reasoning);
  return el('details.reasoning', attributes, el('summary', null, 'reasoning'), body);
}

function bodyOf(entry) {
  if (!entry.text) return null;
  const body = block(entry.role === 'tool' ? 'pre.result' : 'div.words', pretty(entry));
  if (entry.role !== 'system' || entry.text.length <= 600) return body;
  return el('details.long', null, el('summary', null, firstLine(entry.text)), body);
}

function emptyNote(entry) {
  const empty = entry.turn !== null && !entry.text && !entry.calls.length && !entry.reasoning;
  return empty ? el('p.empty', null, 'an empty turn') : null;
}

function troubles(entry) {
  const lines = (entry.errors || []).map((error) => el('p.error', null, el('strong', null, 'could not be read: '), error));
  if (entry.extra_calls) {
    lines.push(el('p.error', null, `${entry.extra_calls} further calls of this turn were not carried out`));
  }
  if (entry.turn !== null && !entry.answered) {
    lines.push(el('p.quiet', null, 'no answer to this turn is in the journal'));
  }
  return lines;
}

function roleOf(entry) {
  if (entry.role === 'step') return entry.calls.length ? 'step in the environment' : 'the environment opens';
  if (entry.role === 'tool') return entry.call ? `result of ${entry.call}` : 'result';
  return entry.turn === null || entry.role !== 'assistant' ? entry.role : `turn ${entry.turn}`;
}

function firstLine(text) {
  const line = text.trim().split('\n', 1)[0].slice(0, 140);
  return `${line} … (${count(text.length)} characters)`;
}

// JSON of a result is indented; everything else stays as it is.
function pretty(entry) {
  const text = entry.text;
  if (entry.role !== 'tool' || text.length > 200000 || !/^\s*[[{]/.test(text)) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return indented(text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g));
}

const OPENS = ['[', '{'];
const CLOSES = [']', '}'];

// Only the space between the tokens changes: parsed values would lose digits, the order of keys and those that repeat.
// A list or object that fits on a line stays on one, and so does one that would be too far to the right.
function indented(tokens) {
  const ends = closingPlaces(tokens);
  const parts = [];
  let indent = '\n';
  for (let at = 0; at < tokens.length; at += 1) {
    const token = tokens[at];
    if (OPENS.includes(token)) {
      const inside = tokens.slice(at, ends[at] + 1);
      if (inside.join('').length + indent.length <= 100 || indent.length > 80) {
        parts.push(oneLine(inside));
        at = ends[at];
      } else {
        indent += '  ';
        parts.push(token, indent);
      }
    } else if (CLOSES.includes(token)) {
      indent = indent.slice(0, -2);
      parts.push(indent, token);
    } else if (token === ',') {
      parts.push(',', indent);
    } else {
      parts.push(token === ':' ? ': ' : readable(token));
    }
  }
  return parts.join('');
}

// The place of the closing bracket of each opening one.
function closingPlaces(tokens) {
  const ends = [];
  const open = [];
  for (const [at, token] of tokens.entries()) {
    if (OPENS.includes(token)) open.push(at);
    if (CLOSES.includes(token)) ends[open.pop()] = at;
  }
  return ends;
}

function oneLine(tokens) {
  return tokens.map((token) => (token === ',' || token === ':' ? `${token} ` : readable(token))).join('');
}

// Strings may have escapes of letters that need none.
function readable(token) {
  return token[0] === '"' ? JSON.stringify(JSON.parse(token)) : token;
}

function turnFacts(entry, severalVersions) {
  const facts = [
    fact(`${count(entry.ids.length)} sampled`, 'tokens that the policy sampled: trained'),
    logprobFacts(entry),
  ];
  if (severalVersions) facts.push(entry.versions.map(([version]) => fact(`version ${version}`, 'weight version')));
  facts.push(timeFact(entry.engine_s, 'engine', 'the engine, waits included'));
  facts.push(timeFact(entry.agent_s, 'agent', "the agent program's own time"));
  const options = asText(entry.asked);
  if (options) facts.push(fact(`asked for ${options}`, 'what the agent program asked for, in place of the job'));
  facts.push(timeFact(entry.answer_s, entry.answered_by, `the ${entry.answered_by}`));
  facts.push(pieceFacts(entry.pieces));
  if (entry.reward !== null && entry.reward !== undefined) facts.push(fact(`reward ${rewardText(entry.reward)}`, 'reward of its actions'));
  return el('span.facts', null, ...facts);
}

function logprobFacts(entry) {
  const logprobs = entry.logprobs.filter((logprob) => typeof logprob === 'number');
  if (!logprobs.length) return null;
  const low = logprobs.reduce((a, b) => (b < a ? b : a));
  const mean = logprobs.reduce((a, b) => a + b, 0) / logprobs.length;
  const kind = low < -2 ? 'low' : '';
  return [
    fact(`mean ${mean.toFixed(2)}`, 'mean logprob'),
    el('span', { class: kind, title: 'lowest logprob' }, `lowest ${low.toFixed(2)}`),
  ];
}

function timeFact(seconds, kind, title) {
  return seconds === undefined ? null : fact(`${kind} ${duration(seconds)}`, title, kind);
}

function pieceFacts(pieces) {
  const facts = [];
  if (pieces.length > 1) facts.push(fact(`${pieces.length} pieces`, 'the generation was interrupted'));
  const finish = pieces.length ? pieces[pieces.length - 1][1] : 'stop';
  if (finish !== 'stop') facts.push(el('span.low', null, `finish ${finish}`));
  return facts;
}

function fact(words, title, kind) {
  return el('span', { title, class: kind || '' }, words);
}

function maskedNote(entry) {
  return entry.masked ? el('span.masked', { title: 'tokens that were not sampled: never trained' }, `${count(entry.masked)} masked tokens`) : null;
}

function callBlock(call) {
  return el('div.call', null,
    el('span.name', null, call.name || 'a call without a name'),
    call.arguments && call.arguments !== '{}' ? block('pre', pretty({ role: 'tool', text: call.arguments })) : null);
}

function image(shown) {
  if (!shown.url) return el('p.empty', null, `image of ${shown.size}, sha256 ${shown.sha256}`);
  return el('img', { src: shown.url, alt: `image of ${shown.size}` });
}

// One cell a token, shaded by its logprob. Where the texts of tokens are known, the cells open to the text in cells.
function tokenStrip(entry) {
  if (!entry.ids.length) return null;
  const cells = strip(entry, null);
  if (!entry.texts) return cells;
  const words = el('details.tokens', { ontoggle: () => { if (words.children.length === 1) words.append(strip(entry, entry.texts)); } },
    el('summary', { title: 'the text of each token' }, cells));
  return words;
}

function strip(entry, texts) {
  const node = el(texts ? 'div.strip.texts' : 'div.strip', texts ? { dir: 'auto' } : { role: 'img', 'aria-label': `${entry.ids.length} sampled tokens` });
  const most = Math.min(entry.ids.length, MOST_CELLS);
  fillStrip(node, entry, texts, 0, most);
  if (most < entry.ids.length) {
    const more = el('button.more', { type: 'button', onclick: () => { more.remove(); fillStrip(node, entry, texts, most, entry.ids.length); } },
      `${count(entry.ids.length - most)} more tokens`);
    node.append(more);
  }
  return node;
}

function fillStrip(node, entry, texts, from, to) {
  const many = entry.versions.length > 1;
  for (const [place, [version, start, end]] of entry.versions.entries()) {
    if (end <= from || start >= to) continue;
    if (many) node.append(el('span.span', null, `v ${version}`));
    for (let at = Math.max(start, from); at < Math.min(end, to); at += 1) {
      const title = `token ${entry.ids[at]}, logprob ${fixed(entry.logprobs[at], 3)}, version ${version}`;
      const cell = el('i', { class: `${shade(entry.logprobs[at])}${place % 2 ? ' other' : ''}`, title });
      if (texts) addText(cell, texts[at].replace(/\n/g, '⏎\n'));
      node.append(cell);
    }
  }
}
