// The encoder of tiles: a convolution over embedded codes, computed as sums of
// rows of a table, then the trunk, whose linear layer also takes the moving
// things.
#pragma once

#include <cstdint>

#include "encoders/trunk.h"

namespace encoders {

// Constants of trainer/models/encoders.py.
inline constexpr int kTileSide = 16;  ///< bytes of a row, and rows
inline constexpr int kTileRows = 13;  ///< of cells; the others are things
inline constexpr int kTileBytes = kTileSide * kTileSide;
inline constexpr int kTileCodes = 32;
inline constexpr int kCodeSize = 8;  ///< numbers that embed a code
inline constexpr int kThings = 8;
inline constexpr int kThingBytes = 6;  ///< a code, then signed numbers
inline constexpr int kThingNumbers = kThingBytes - 1;
inline constexpr int kEnemy = 15, kDanger = 16;  ///< codes that hurt Mario
inline constexpr int kFramesAhead[] = {0, 8};    ///< of the maps of it
inline constexpr int kNearCell = 8, kNearSide = 12;
inline constexpr int kNearLeft = -32, kNearTop = -48;
inline constexpr int kNear = 2 * kNearSide * kNearSide;

struct TilesShape {
  int channels1, channels2, features;

  TrunkShape trunk() const;
  /// Whether the kernels support this shape.
  bool Valid() const;
};

struct TilesWeights {
  const float* codes;  ///< (32, 8)
  const float* conv;   ///< (channels1, 8, 3, 3)
  const float* bias;
  const float* scales;  ///< (5,) of a thing's numbers
  TrunkWeights trunk;
};

struct TilesGradients {
  float* codes;
  float* conv;
  float* bias;
  TrunkGradients trunk;
};

/// Whether all codes of frames, (rows, 16, 16), are below 32.
bool ValidCodes(int64_t rows, const uint8_t* frames);

/// Computes features from frames (rows, 16, 16) with valid codes; like
/// CnnForward.
void TilesForward(const TilesShape& shape, Path path, int64_t rows,
                  const uint8_t* frames, const TilesWeights& weights,
                  uint16_t* maps, uint16_t* x, float* y);

/// Like CnnBackward.
void TilesBackward(const TilesShape& shape, Path path, int64_t rows,
                   const uint8_t* frames, const TilesWeights& weights,
                   const uint16_t* maps, const uint16_t* x, const float* y,
                   const float* dy, const TilesGradients& gradients);

}  // namespace encoders
