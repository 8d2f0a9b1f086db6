#!/bin/sh
# Prints new passwords, one a line, for the users of Redis and for Flower. deploy/secrets.sh makes files of them.
set -eu
random() {
  od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}
for user in WORKER PRODUCER TRAINER READER FLOWER ADMIN; do
  echo "ROLLQ_${user}_PASSWORD=$(random)"
done
echo "FLOWER_BASIC_AUTH=rollq:$(random)"
