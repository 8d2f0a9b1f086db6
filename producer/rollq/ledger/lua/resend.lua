-- A worker took the job's message and did not claim the job: send it again as soon as its backoff allows, before those
-- that were not sent yet, or some time later.
-- reads and writes  queued job:<job> group:<group>
-- ARGV   id after_s (0: at once)
-- reply  ok
local id, after_s, time = ARGV[2], tonumber(ARGV[3]), now()
local queued, job = prefix .. 'queued', prefix .. 'job:' .. id
local not_before = backoff_end(redis_call('HGET', job, 'not_before'), time)
if after_s > 0 then
  not_before = math.max(not_before, time + after_s)
elseif not_before <= time then
  local group = prefix .. 'group:' .. parse(id)
  not_before = at_once(number(redis_call('HGET', group, 'seq'), group))
end
allow_without_memory()
redis_call('ZADD', queued, 'XX', not_before, id)
return { 'ok' }
