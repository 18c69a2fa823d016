# SPDX-License-Identifier: Apache-2.0
# Under a sanitizer a run takes ten times as long; the promises are the same, so fewer seeds have to do.
if(NOT TARGET kvonce_sim)
  return()
endif()
if(KVONCE_SANITIZE)
  set(_sim_seeds_default 300)
else()
  set(_sim_seeds_default 10000)
endif()
set(KVONCE_SIM_SEEDS ${_sim_seeds_default} CACHE STRING "Seeds that the test sim_seeds runs")

kvonce_add_test(sim_seeds TIMEOUT 900 LABELS sim COMMAND kvonce_sim --seeds 1..${KVONCE_SIM_SEEDS})
kvonce_add_test(sim_faults TIMEOUT 900 LABELS sim COMMAND kvonce_sim --check-faults)
