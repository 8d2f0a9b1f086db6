#!/bin/sh
# Prints new passwords for docker-compose.yml:  deploy/redis/passwords.sh > .env
set -eu
random() {
  od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}
for user in WORKER PRODUCER TRAINER FLOWER; do
  echo "ROLLQ_${user}_PASSWORD=$(random)"
done
echo "FLOWER_BASIC_AUTH=rollq:$(random)"
