-- Note what a worker's episodes of this run have spent their time with. A run that was dropped gets no key again.
-- reads and writes  run spent
-- ARGV   worker seconds (rollq.ledger.workers.time_spent, as text)
-- reply  nothing
if redis.call('EXISTS', prefix .. 'run') == 1 then redis.call('HSET', typed('spent', 'hash'), ARGV[2], ARGV[3]) end
