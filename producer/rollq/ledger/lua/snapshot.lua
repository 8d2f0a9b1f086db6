-- Where all jobs and groups are, at one instant, and who waits. It is a script because a Redis that is out of memory
-- refuses even reads in MULTI.
-- reads and writes  run queued leased dead count open:<purpose> ready:<purpose> held:<purpose> waiting:<purpose> (reads
--                   only)
-- ARGV   totals (1: with them)
-- reply  known (1: the run exists), sealed, the number of entries in each index (in the order of common.lua); for train
--        and for eval: the limit at which a producer waits (-1: none waits; 0: it waits for admission), the groups that
--        the most modest waiting consumer wants (0: none);
--        then the policy: step version ('': none) batch (0: no admission) staleness running (0: no
--        limit) trained capacity; then totals (name value, ...)
local time = now()
local reply = { checked('run', 'hash', 'EXISTS'), checked('run', 'hash', 'HEXISTS', 'sealed') }
for _, name in ipairs(INDEXES) do reply[#reply + 1] = checked(name, 'zset', 'ZCARD') end
for _, purpose in ipairs({ 'train', 'eval' }) do
  local at, ahead = string.match(field('run', 'full:' .. purpose) or '', '^(%S+) (%d+)$')
  reply[#reply + 1] = at and time - stored_number(at) < constants.outage_s and tonumber(ahead) or -1
  local least
  for _, wanted in ipairs(checked('waiting:' .. purpose, 'hash', 'HVALS')) do
    least = math.min(least or MOST, stored_number(wanted))
  end
  reply[#reply + 1] = least or 0
end
local step, version = unpack(checked('run', 'hash', 'HMGET', 'step', 'version'))
local bound = read_admission() or { batch = 0, staleness = 0, running = 0, trained = 0 }
reply[#reply + 1] = { step or '', version or '', bound.batch, bound.staleness, bound.running,
  bound.trained, bound.batch > 0 and capacity(bound) or 0 }
if ARGV[2] == '1' then reply[#reply + 1] = checked('count', 'hash', 'HGETALL') end
return reply
