// SPDX-License-Identifier: Apache-2.0
//
// The program of one rank process of a benchmark: connects to the store, does what it is told over a socket, and tells what came out.
#pragma once

namespace kvonce::bench {

/// Descriptors and process that started it, as its arguments say. Returns its exit status.
int run_rank_process(int channel, int board, int parent);

/// Its descriptors' numbers, and how the program kvonce is told to be one.
inline constexpr int kRankChannelFd = 3;
inline constexpr int kRankBoardFd = 4;
inline constexpr const char* kRankCommand = "rank-process";

}  // namespace kvonce::bench
