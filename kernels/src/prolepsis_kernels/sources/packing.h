// How weights lie in memory: packed [N/16][K/2][16][2], for a block of 16 columns pairs along K side by side, as vdpbf16ps and
// AMX read them. A task covers two blocks.
#pragma once

constexpr int kBlock = 16;         // columns of a block
constexpr int kTask = 2 * kBlock;  // columns of a task
