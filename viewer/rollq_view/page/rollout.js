// One rollout: why it scored what it scored, where its time went, and the conversation.
'use strict';

const KINDS = ['engine', 'environment', 'user', 'agent'];

// `links`: what only the served page has: group, attempts, requeue, previous, next.
function rolloutPage(page, links = {}) {
  return el('article.rollout', null, verdict(page, links), failedCalls(page), reasonBlock(page), timeline(page), ribbon(page),
    el('div.columns', null, conversation(page), facts(page, links)));
}

function verdict(page, links) {
  const kind = verdictOf(page.reward);
  const title = `${page.env} ${page.split} · task ${page.task}`;
  const outcome = page.stop || page.state || 'unfinished';
  return el('header.verdict', { class: kind },
    el('div.score', { title: 'reward' }, el('b', null, rewardText(page.reward)), el('span', null, 'reward')),
    el('div.what', null,
      el('h1', null, title),
      el('p.id', null, page.job, page.attempt > 1 ? ` · attempt ${page.attempt}` : ''),
      el('p.pills', null, outcomePill(outcome),
        page.failure ? pill(`failure: ${page.failure}`, 'bad') : null,
        page.running && page.waits ? pill(`waits for ${page.waits.what}, ${duration(page.waits.seconds)}`, 'live') : null,
        gradeParts(page))),
    el('nav.moves', { 'aria-label': 'Rollouts' }, links.previous, links.next, links.requeue));
}

// What the grader says, the bad news first.
function gradeParts(page) {
  const rank = (part) => (part.ok === false ? 0 : part.ok === null && !part.empty ? 1 : part.ok ? 2 : 3);
  const parts = [...page.parts].sort((a, b) => rank(a) - rank(b));
  return parts.filter((part) => part.value.length < 40 && !part.empty || part.ok !== null).map((part) => {
    if (part.ok === null) return pill(`${part.name} ${part.value}`, 'plain');
    return pill(`${part.ok ? '✓' : '✗'} ${part.name}`, part.ok ? 'good' : 'bad');
  });
}

function failedCalls(page) {
  const long = page.parts.filter((part) => part.ok === null && !part.empty && part.value.length >= 40);
  if (!page.failed_calls.length && !long.length && !page.faults.length) return null;
  return el('section.why', { 'aria-label': 'Why' },
    page.faults.map((fault) => el('p.error', null, el('strong', null, 'breaks the format: '), fault)),
    long.map((part) => el('div.part', null, el('strong', null, part.name), block('pre', pretty({ role: 'tool', text: part.value })))),
    page.failed_calls.length ? el('h2', null, page.failed_calls.length === 1 ? 'What failed' : `${page.failed_calls.length} failures`) : null,
    el('ul', null, page.failed_calls.slice(0, 20).map((call) => el('li', null,
      turnLink(call.turn, call.turn === null ? 'before' : `turn ${call.turn}`), ' ', el('strong', null, call.what), ' ',
      el('span.quiet', null, call.text.trim().split('\n', 1)[0].slice(0, 200))))));
}

function turnLink(turn, words) {
  if (turn === null) return el('span', null, words);
  return el('a', { href: `#turn-${turn}`, onclick: (event) => { event.preventDefault(); goToTurn(turn); } }, words);
}

function goToTurn(turn) {
  const node = document.getElementById(`turn-${turn}`);
  if (!node) return;
  node.scrollIntoView({ block: 'start' });
  node.focus({ preventScroll: true });
}

function reasonBlock(page) {
  if (!page.reason) return null;
  const several = page.reason.trim().includes('\n');
  return el('section.reason', { 'aria-label': 'Failure' }, el('h2', null, page.failure ? `Failure of class ${page.failure}` : 'Reason'),
    el('p.error', null, page.reason_line),
    several ? el('details', null, el('summary', null, 'All of it'), block('pre', page.reason)) : null);
}

// Where the time of the attempt went. Pieces of time that nothing claims are rollq's own, or a pause after a crash.
function timeline(page) {
  const times = page.times.filter((time) => time[1] > 0);
  if (!times.length) return null;
  const began = Math.min(page.began || times[0][1], times[0][1]);
  const ended = Math.max(page.ended || 0, ...times.map((time) => time[1] + time[2]));
  const all = Math.max(ended - began, 1e-6);
  const sums = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
  const strip = el('div.timeline', { role: 'img', 'aria-label': `The attempt took ${duration(all)}` });
  for (const [kind, at, seconds, turn] of times) {
    sums[kind] += seconds;
    strip.append(el(`a.${kind}`, {
      style: { left: `${(100 * (at - began)) / all}%`, width: `${(100 * seconds) / all}%` },
      title: `turn ${turn}: ${kind} ${duration(seconds)}`, href: `#turn-${turn}`, tabindex: '-1',
      onclick: (event) => { event.preventDefault(); goToTurn(turn); },
    }));
  }
  const rest = Math.max(0, all - KINDS.reduce((sum, kind) => sum + sums[kind], 0));
  const queue = page.submitted && page.began > page.submitted ? page.began - page.submitted : null;
  return el('section.times', { 'aria-label': 'Time' }, strip, el('p.legend', null,
    queue === null ? null : el('span.queue', null, `queue ${duration(queue)}`),
    KINDS.filter((kind) => sums[kind] > 0).map((kind) => el(`span.${kind}`, null, `${kind} ${duration(sums[kind])} (${percent(sums[kind] / all)})`)),
    el('span.rest', { title: "rollq's own work, the ledger, and pauses between attempts" }, `between ${duration(rest)}`),
    el('span.all', null, `${duration(all)} in all`)));
}

// The token sequence: what was sampled, in the place where it stands.
function ribbon(page) {
  const { spans, total, sampled, versions, mean, lowest: low } = page.tokens;
  if (!total) return null;
  const strip = el('div.ribbon', { role: 'img', 'aria-label': `${count(sampled)} of ${count(total)} tokens were sampled` });
  for (const [length, trained, turn] of spans) {
    if (!length) continue;
    const title = trained ? `turn ${turn}: ${count(length)} sampled` : `${count(length)} masked`;
    const given = { title, style: { 'flex-grow': String(length) }, class: trained ? 'sampled' : 'masked' };
    strip.append(trained ? el('a', { ...given, href: `#turn-${turn}`, tabindex: '-1', onclick: (event) => { event.preventDefault(); goToTurn(turn); } }) : el('span', given));
  }
  return el('section.times', { 'aria-label': 'Tokens' }, strip, el('p.legend', null,
    el('span.sampled', null, `${count(sampled)} sampled, trained`), el('span.masked', null, `${count(total - sampled)} masked`),
    mean === null ? null : el('span.all', null, `logprob mean ${fixed(mean, 3)}, lowest ${fixed(low, 2)}`),
    Object.entries(versions).map(([version, tokens]) => el('span.all', null, `version ${version}: ${count(tokens)}`))));
}

function facts(page, links) {
  const rows = [
    ['group', links.group || page.group], ['sample', page.sample], ['attempt', page.attempt], ['state', SAID[page.state] || page.state],
    ['group is', page.group_state], ['worker', page.worker], ['began', moment(page.began)], ['turns', page.turns],
    ['times', page.tokens.sampled && !page.times.length ? 'not in this file' : null],
    ['queue', page.queue === 'rollq' ? null : page.queue], ['environment', page.env_version],
    ['sampling', asText(page.sampling)], ['labels', asText(page.labels)], ['template', asText(page.template_kwargs)],
    ['adapter', page.adapter],
    ['failures', Object.entries(page.failures || {}).map(([kind, times]) => `${times} ${kind}`).join(', ')],
  ].filter(([, value]) => value !== null && value !== undefined && value !== '' && value !== '–');
  return el('aside.facts-of', { 'aria-label': 'Facts' },
    el('dl', null, rows.map(([name, value]) => [el('dt', null, name), el('dd', null, value)])),
    links.attempts,
    page.tools.length ? el('details', null, el('summary', null, page.tools.length === 1 ? '1 tool' : `${page.tools.length} tools`),
      el('dl.tools', null, page.tools.map((tool) => [el('dt', null, tool.name), el('dd', null, tool.text.slice(0, 300))]))) : null,
    el('div.key', null, el('p', null, 'A cell is a sampled token. The further right in this row, the less likely it was:'),
      el('div.strip', null, ['s0', 's1', 's2', 's3', 's4'].map((name) => el('i', { class: name }))),
      el('p.quiet', null, `logprob above ${BOUNDS.join(', ')}, and below`),
      page.entries.some((entry) => entry.texts) ? el('p', null, 'Click a row of cells, or press t, for the text of each token.') : null));
}

function asText(value) {
  return Object.entries(value || {}).map(([name, text]) => `${name} ${text}`).join(', ');
}

// j and k go to the next and the previous turn; t opens and closes the texts of tokens.
function turnKeys(active) {
  document.addEventListener('keydown', (event) => {
    if (!active() || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const tokens = [...document.querySelectorAll('details.tokens')];
    const close = tokens.some((one) => one.open);
    if (event.key === 't') for (const one of tokens) one.open = !close;
    if (event.key !== 'j' && event.key !== 'k') return;
    const turns = [...document.querySelectorAll('.message.sampled')];
    const tops = turns.map((turn) => turn.getBoundingClientRect().top);
    const here = document.activeElement && turns.indexOf(document.activeElement);
    const next = here >= 0 ? here + (event.key === 'j' ? 1 : -1)
      : event.key === 'j' ? tops.findIndex((top) => top > 1) : tops.findLastIndex((top) => top < -1);
    if (turns[next]) goToTurn(turns[next].id.slice('turn-'.length));
  });
}
