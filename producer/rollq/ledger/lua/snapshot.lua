-- Where all jobs and groups are, at one instant, and who waits. It is a script because a Redis that is out of memory
-- refuses even reads in MULTI.
-- reads and writes  run queued leased dead count open:<purpose> ready:<purpose> held:<purpose> waiting:<purpose> (reads
--                   only)
-- ARGV   totals (1: with them)
-- reply  ok exists (1: the run does) sealed, the number of entries in each index under its name; full:<purpose> (the
--        limit at which a producer waits; -1: none waits; 0: it waits for admission) wanted:<purpose> (smallest number
--        of groups that a consumer waits for; 0: none waits) step version ('': none) batch (0: no admission) staleness
--        running (0: no limit) trained capacity totals (names and values)
local time, meta = now(), prefix .. 'run'
local reply = { 'ok', 'exists', redis_call('EXISTS', meta), 'sealed', redis_call('HEXISTS', meta, 'sealed') }
local function add(name, value)
  reply[#reply + 1], reply[#reply + 2] = name, value
end
for _, name in ipairs(INDEXES) do add(name, redis_call('ZCARD', prefix .. name)) end
for _, purpose in ipairs(PURPOSES) do
  local at, ahead = string.match(field('run', 'full:' .. purpose) or '', '^(%S+) (%d+)$')
  local waits = at and time - number(at, meta) < constants.outage_s
  add('full:' .. purpose, waits and tonumber(ahead) or -1)
  local least
  local waiting = prefix .. 'waiting:' .. purpose
  for _, wanted in ipairs(redis_call('HVALS', waiting)) do least = math.min(least or MOST, number(wanted, waiting)) end
  add('wanted:' .. purpose, least or 0)
end
local step, version = unpack(redis_call('HMGET', meta, 'step', 'version'))
add('step', step and number(step, meta) or '')
add('version', version or '')
local bound = read_admission()
for _, name in ipairs({ 'batch', 'staleness', 'running', 'trained' }) do add(name, bound and bound[name] or 0) end
add('capacity', bound and capacity(bound) or 0)
add('totals', ARGV[2] == '1' and redis_call('HGETALL', prefix .. 'count') or {})
return reply
