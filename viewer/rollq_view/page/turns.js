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
  const kind = { class: `${entry.role}${entry.failed ? ' failed' : ''}${sampled ? ' sampled' : ''}` };
  if (sampled) Object.assign(kind, { id: `turn-${entry.turn}`, tabindex: '-1' });
  const long = entry.role === 'system' && entry.text.length > 600;
  const body = entry.text ? block(entry.role === 'tool' ? 'pre.result' : 'div.words', pretty(entry)) : null;
  return el('li.message', kind,
    el('div.head', null, el('span.role', null, roleOf(entry)), sampled ? turnFacts(entry, severalVersions) : null, maskedNote(entry)),
    entry.reasoning ? el('details.reasoning', { open: entry.reasoning.length < 2000 }, el('summary', null, 'reasoning'), block('div.words', entry.reasoning)) : null,
    entry.role === 'step' ? entry.calls.map(callBlock) : null,
    long ? el('details.long', null, el('summary', null, firstLine(entry.text)), body) : body,
    sampled && !entry.text && !entry.calls.length && !entry.reasoning ? el('p.empty', null, 'an empty turn') : null,
    entry.role === 'step' ? null : entry.calls.map(callBlock),
    entry.images.map(image),
    (entry.errors || []).map((error) => el('p.error', null, el('strong', null, 'could not be read: '), error)),
    entry.extra_calls ? el('p.error', null, `${entry.extra_calls} further calls of this turn were not carried out`) : null,
    sampled && !entry.answered ? el('p.quiet', null, 'no answer to this turn is in the journal') : null,
    sampled ? tokenStrip(entry) : null);
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

// Only the space between the tokens changes: parsed values would lose digits, the order of keys and those that repeat.
// What fits on a line stays on one, and so does what would be too far to the right.
function indented(tokens) {
  const [begins, closing, open] = [[0], [], []];
  for (const [at, token] of tokens.entries()) {
    begins.push(begins[at] + token.length);
    if (token === '[' || token === '{') open.push(at);
    if (token === ']' || token === '}') closing[open.pop()] = at;
  }
  const parts = [];
  let [indent, flatTo] = ['\n', -1];
  for (const [at, token] of tokens.entries()) {
    const end = closing[at];
    if (at > flatTo && end && (begins[end + 1] - begins[at] + indent.length <= 100 || indent.length > 80)) flatTo = end;
    const flat = at <= flatTo;
    if (!flat && end) parts.push(token, indent += '  ');
    else if (!flat && (token === ']' || token === '}')) parts.push(indent = indent.slice(0, -2), token);
    else if (token === ',') parts.push(flat ? ', ' : ',' + indent);
    else parts.push(token === ':' ? ': ' : readable(token));
  }
  return parts.join('');
}

// Strings may have escapes of letters that need none.
function readable(token) {
  return token[0] === '"' ? JSON.stringify(JSON.parse(token)) : token;
}

function turnFacts(entry, severalVersions) {
  const logprobs = entry.logprobs.filter((logprob) => typeof logprob === 'number');
  const low = logprobs.length ? logprobs.reduce((a, b) => (b < a ? b : a)) : null;
  const mean = logprobs.length ? logprobs.reduce((a, b) => a + b, 0) / logprobs.length : null;
  const cut = entry.pieces.length > 1 ? `${entry.pieces.length} pieces` : '';
  const finish = entry.pieces.length ? entry.pieces[entry.pieces.length - 1][1] : 'stop';
  return el('span.facts', null,
    fact(`${count(entry.ids.length)} sampled`, 'tokens that the policy sampled: trained'),
    mean === null ? null : fact(`mean ${mean.toFixed(2)}`, 'mean logprob'),
    low === null ? null : el('span', { class: low < -2 ? 'low' : '', title: 'lowest logprob' }, `lowest ${low.toFixed(2)}`),
    severalVersions ? entry.versions.map(([version]) => fact(`version ${version}`, 'weight version')) : null,
    entry.engine_s === undefined ? null : fact(`engine ${duration(entry.engine_s)}`, 'the engine, waits included', 'engine'),
    entry.agent_s === undefined ? null : fact(`agent ${duration(entry.agent_s)}`, "the agent program's own time", 'agent'),
    asText(entry.asked) ? fact(`asked for ${asText(entry.asked)}`, 'what the agent program asked for, in place of the job') : null,
    entry.answer_s === undefined ? null : fact(`${entry.answered_by} ${duration(entry.answer_s)}`, `the ${entry.answered_by}`, entry.answered_by),
    cut ? fact(cut, 'the generation was interrupted') : null,
    finish === 'stop' ? null : el('span.low', null, `finish ${finish}`),
    entry.reward === null || entry.reward === undefined ? null : fact(`reward ${rewardText(entry.reward)}`, 'reward of its actions'));
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
