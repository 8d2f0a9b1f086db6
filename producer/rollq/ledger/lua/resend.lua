-- A worker took the job's message and did not claim the job: send it again as soon as its backoff allows, before those
-- that were not sent yet, or some time later.
-- reads and writes  queued job:<job> group:<group>
-- ARGV   id after_s (0: at once)
-- reply  ok
local id, after_s, time = ARGV[2], tonumber(ARGV[3]), now()
local queued, job = typed('queued', 'zset'), typed('job:' .. id, 'hash')
local not_before = backoff_end(redis.call('HGET', job, 'not_before'), time)
if after_s > 0 then
  not_before = math.max(not_before, time + after_s)
elseif not_before <= time then
  not_before = at_once(whole(field('group:' .. parse(id), 'seq'), 0, MOST) or 0)
end
allow_without_memory()
redis.call('ZADD', queued, 'XX', not_before, id)
return { 'ok' }
