// Compares drawn pictures with a slow definition of a picture, and pictures on
// canvases of all kinds while programs write the PPU's registers in the middle
// of lines. Also compares frames of observations that are made while a picture
// is drawn with frames made of the whole picture.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mario/observation.h"
#include "mario/pictures.h"
#include "nes/console.h"
#include "nes/palette.h"

namespace {

using nes::kScreenHeight;
using nes::kScreenWidth;
using nes::PpuState;
using nes::Timing;

using Random = std::mt19937;

// A program that writes random registers after random waits, for ever: scroll,
// palette, masks and sprites change anywhere in a picture. Its DMA copies its
// own bytes to the sprites.
std::vector<uint8_t> RegisterWrites(Random& random) {
  std::vector<uint8_t> prg;
  const auto emit = [&prg](std::initializer_list<unsigned> bytes) {
    for (const unsigned byte : bytes) prg.push_back(static_cast<uint8_t>(byte));
  };
  while (prg.size() < 32'000) {
    const unsigned value = random() & 0xFF;
    switch (random() % 12) {
      case 0:
      case 1: {
        constexpr unsigned kRegisters[] = {0, 1, 3, 4, 5, 5, 6, 6, 7, 7, 7};
        const unsigned number = kRegisters[random() % std::size(kRegisters)];
        const bool show = number == 1 && random() % 4 != 0;
        emit({0xA9, value | (show ? 0x18u : 0u), 0x8D, number, 0x20});
        break;
      }
      case 2:
        emit({0xAD, static_cast<unsigned>(random() % 8), 0x20});
        break;
      case 3:
        if (random() % 8 == 0) emit({0xA9, 0x80 | value, 0x8D, 0x14, 0x40});
        break;
      case 4:
      case 5:
      case 6:
        emit({0xA2, 1 + value % 200, 0xCA, 0xD0, 0xFD});  // a loop that waits
        break;
      default:
        for (unsigned nops = random() % 6; nops > 0; --nops) emit({0xEA});
    }
  }
  prg.resize(32'768 - 6 - 3, 0xEA);
  emit({0x4C, 0x00, 0x80});                    // from the start again
  emit({0x00, 0x80, 0x00, 0x80, 0x00, 0x80});  // all vectors, too
  return prg;
}

std::shared_ptr<const nes::Cartridge> MakeCartridge(
    Random& random, const std::vector<uint8_t>& prg, bool has_chr,
    bool has_plain_tiles = false) {
  std::vector<uint8_t> image = {'N', 'E', 'S', 0x1A, 2, has_chr};
  image.push_back(random() & 1);
  image.resize(16);
  image.insert(image.end(), prg.begin(), prg.end());
  // With few pixels set, sprites and background show through each other.
  for (int i = 0; i < 8192 && has_chr; ++i) {
    image.push_back(static_cast<uint8_t>(random() & random()));
    // The first tiles of both tables are of one colour: 0, 3, 0, 3.
    if (has_plain_tiles && i % 4096 < 4 * 16) image.back() = i & 16 ? 0xFF : 0;
  }
  return nes::Cartridge::Parse(image);
}

// Sprites and tiles as no program sets them up within a few frames.
void ScramblePicture(Random& random, nes::Console* console) {
  nes::State state = console->state();
  for (uint8_t& byte : state.ppu.oam) byte = static_cast<uint8_t>(random());
  for (int i = 2; i < 256; i += 4) state.ppu.oam[i] &= 0xE3;
  for (uint8_t& byte : state.ppu.nametable) {
    byte = static_cast<uint8_t>(random());
  }
  for (uint8_t& byte : state.ppu.palette) byte = random() & 63;
  console->set_state(state);
}

// --- A slow definition of a picture during which nothing is written ----------

/// The two bits of a pixel of a tile.
unsigned TilePixel(const nes::Cartridge& cartridge, unsigned address, int x) {
  const uint8_t* chr = cartridge.chr() + address;
  return (chr[0] >> (7 - x) & 1u) | (chr[8] >> (7 - x) & 1u) << 1;
}

unsigned BackgroundEntry(const nes::Cartridge& cartridge, const PpuState& ppu,
                         int x, int y) {
  if (!(ppu.mask & 0x08) || (x < 8 && !(ppu.mask & 0x02))) return 0;
  // The scroll as a place in four nametables, 512 x 480.
  const unsigned t = ppu.t;
  const unsigned left = (t & 31) * 8 + ppu.fine_x + (t >> 10 & 1) * 256;
  const unsigned top = (t >> 5 & 31) * 8 + (t >> 12 & 7) + (t >> 11 & 1) * 240;
  const unsigned at_x = (left + static_cast<unsigned>(x)) % 512;
  const unsigned at_y = (top + static_cast<unsigned>(y)) % 480;
  const unsigned table = at_x / 256 | at_y / 240 << 1;
  const bool vertical = cartridge.mirroring() == nes::Mirroring::kVertical;
  const uint8_t* names =
      ppu.nametable + ((vertical ? table & 1 : table >> 1) * 1024);
  const unsigned column = at_x % 256 / 8, row = at_y % 240 / 8;
  const unsigned attribute = names[960 + row / 4 * 8 + column / 4] >>
                                 (row / 2 % 2 * 4 + column / 2 % 2 * 2) &
                             3;
  const unsigned address =
      (ppu.ctrl & 0x10u) << 8 | names[row * 32 + column] * 16u | at_y % 240 % 8;
  const unsigned pixel =
      TilePixel(cartridge, address, static_cast<int>(at_x % 8));
  return pixel == 0 ? 0 : attribute * 4 + pixel;
}

unsigned Entry(const nes::Cartridge& cartridge, const PpuState& ppu, int x,
               int y) {
  const unsigned background = BackgroundEntry(cartridge, ppu, x, y);
  if (!(ppu.mask & 0x10) || (x < 8 && !(ppu.mask & 0x04))) return background;
  const int height = ppu.ctrl & 0x20 ? 16 : 8;
  for (int i = 0, found = 0; i < 64 && found < 8; ++i) {
    const uint8_t* sprite = ppu.oam + i * 4;
    int row = y - 1 - sprite[0];
    if (row < 0 || row >= height) continue;
    ++found;
    int column = x - sprite[3];
    if (column < 0 || column >= 8) continue;
    if (sprite[2] & 0x80) row = height - 1 - row;
    if (sprite[2] & 0x40) column = 7 - column;
    unsigned address = (ppu.ctrl & 0x08u) << 9 | sprite[1] * 16u;
    if (height == 16) {
      address = (sprite[1] & 1u) << 12 | (sprite[1] & 0xFEu) * 16u;
      if (row >= 8) address += 16;
    }
    address += static_cast<unsigned>(row) % 8;
    const unsigned pixel = TilePixel(cartridge, address, column);
    if (pixel == 0) continue;
    if ((sprite[2] & 0x20) && background != 0) return background;
    return 16 + (sprite[2] & 3u) * 4 + pixel;
  }
  return background;
}

std::vector<uint8_t> StandsStill() {
  std::vector<uint8_t> prg(32'768, 0xEA);
  const uint8_t end[] = {0x4C, 0xF0, 0xFF, 0x40};  // JMP self; RTI
  std::memcpy(&prg[0x7FF0], end, sizeof(end));
  const uint8_t vectors[] = {0xF3, 0xFF, 0xF0, 0xFF, 0xF3, 0xFF};
  std::memcpy(&prg[0x7FFA], vectors, sizeof(vectors));
  return prg;
}

TEST(Drawing, APictureIsAsItIsDefined) {
  Random random(11);
  for (int round = 0; round < 60; ++round) {
    const auto cartridge = MakeCartridge(random, StandsStill(), true);
    nes::Console console(cartridge);
    for (int frame = 0; frame < 2; ++frame) console.RunFrame(0, nullptr);
    ScramblePicture(random, &console);
    nes::State state = console.state();
    state.ppu.ctrl = random() & 0x3B;
    state.ppu.mask = static_cast<uint8_t>(random() | (round % 4 ? 0x18 : 0));
    state.ppu.t = random() & 0x7FFF;
    if ((state.ppu.t >> 5 & 31) >= 30) state.ppu.t &= 0x7C1F;
    state.ppu.v = state.ppu.t & 0x2FFF;  // not in the palette
    state.ppu.fine_x = random() & 7;
    // Some in a heap, so that they overlap.
    for (int i = 0; i < 256; i += 8) {
      state.ppu.oam[i] = 100 + random() % 16;
      state.ppu.oam[i + 3] = static_cast<uint8_t>(round * 4 + random() % 16);
    }
    console.set_state(state);
    std::vector<uint8_t> pixels(nes::kScreenPixels);
    console.RunFrame(0, pixels.data());
    const uint8_t visible = state.ppu.mask & 1 ? 0x30 : 0x3F;
    for (int y = 0; y < kScreenHeight; ++y) {
      for (int x = 0; x < kScreenWidth; ++x) {
        const unsigned entry = Entry(*cartridge, state.ppu, x, y);
        const uint8_t want = state.ppu.palette[entry & 3 ? entry : 0] & visible;
        ASSERT_EQ(pixels[static_cast<size_t>(y * kScreenWidth + x)], want)
            << "round " << round << ", x " << x << ", y " << y;
      }
    }
  }
}

// --- Canvases ----------------------------------------------------------------

/// Copies the finished lines into whole pictures, one for each plane.
class Collector : public nes::Canvas {
 public:
  Collector(Random& random, bool in_order) {
    has_margins = random() & 1;
    planes = 1 + static_cast<int>(random() % kMostPlanes);
    const unsigned kept = in_order ? 16u << random() % 5 : 256u;
    line_mask = kept - 1;
    stride = 256 + (has_margins ? 2 * kMargin + random() % 32 : 0);
    plane_bytes = stride * kept;
    memory_.resize(plane_bytes * static_cast<size_t>(planes) + 2 * kMargin);
    lines = memory_.data() + (has_margins ? kMargin : 0);
    for (int i = 0; i < planes * 64; ++i) {
      colours_.push_back(static_cast<uint8_t>(random()));
    }
    if (planes > 1 || random() & 1) colours = colours_.data();
    for (bool& line : wanted_) line = random() % 4 != 0;
    if (random() & 1) wanted = wanted_;
    pictures_.resize(static_cast<size_t>(planes * nes::kScreenPixels));
  }

  void Finished(int begin, int end) override {
    EXPECT_TRUE(end - begin <= 8 || (wanted != nullptr && !wanted[begin]));
    for (int plane = 0; plane < planes; ++plane) {
      for (int y = begin; y < end; ++y) Take(plane, y);
    }
  }
  void TakeAll() {
    for (int plane = 0; plane < planes; ++plane) {
      for (int y = 0; y < kScreenHeight; ++y) Take(plane, y);
    }
  }

  /// Whether lines that were asked for are those of `pixels`.
  bool Shows(const std::vector<uint8_t>& pixels) const {
    for (int plane = 0; plane < planes; ++plane) {
      for (int i = 0; i < nes::kScreenPixels; ++i) {
        if (wanted != nullptr && !wanted[i / kScreenWidth]) continue;
        const uint8_t colour = pixels[static_cast<size_t>(i)];
        if (pictures_[static_cast<size_t>(plane * nes::kScreenPixels + i)] !=
            (colours == nullptr ? colour : colours[plane * 64 + colour])) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  void Take(int plane, int y) {
    std::memcpy(&pictures_[static_cast<size_t>(plane * nes::kScreenPixels +
                                               y * kScreenWidth)],
                at(plane, y), kScreenWidth);
  }

  std::vector<uint8_t> memory_, colours_, pictures_;
  bool wanted_[kScreenHeight];
};

TEST(Drawing, AnyCanvasShowsThePicture) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const auto cartridge =
        MakeCartridge(random, RegisterWrites(random), seed % 4 != 0);
    const Timing timing = seed & 1 ? Timing::kNesPy : Timing::kConsole;
    nes::Console plain(cartridge, timing);
    nes::Console drawing(cartridge, timing);
    std::vector<uint8_t> pixels(nes::kScreenPixels);
    for (int frame = 0; frame < 6; ++frame) {
      if (frame == 1) {
        ScramblePicture(random, &plain);
        drawing.set_state(plain.state());
      }
      Collector canvas(random, timing == Timing::kConsole);
      plain.RunFrame(0, pixels.data());
      drawing.RunFrameOnto(0, &canvas);
      if (timing == Timing::kNesPy) canvas.TakeAll();
      ASSERT_EQ(
          std::memcmp(&plain.state(), &drawing.state(), sizeof(nes::State)), 0);
      // The first frame begins on line 0.
      if (frame > 0) {
        ASSERT_TRUE(canvas.Shows(pixels)) << "seed " << seed << ", " << frame;
      }
    }
  }
}

// --- Frames of observations --------------------------------------------------

mario::Config RandomConfig(Random& random) {
  const char* const kTypes[] = {"gray", "rgb", "gray+rgb", "tiles+gray"};
  const char* const kHuds[] = {"keep", "mask", "crop"};
  constexpr int kSides[] = {84, 84, 96, 64, 42, 1, 7, 83, 120, 208};
  mario::Config config;
  config.obs_type = kTypes[random() % std::size(kTypes)];
  config.hud = kHuds[random() % std::size(kHuds)];
  config.img_height = kSides[random() % std::size(kSides)];
  config.img_width = kSides[random() % std::size(kSides)];
  config.use_inter_area_resize = random() % 4 != 0;
  config.frame_max = random() & 1;
  return config;
}

/// Frames of an observation that are made while pictures are drawn, and those
/// that are made of the whole pictures.
class Frames {
 public:
  Frames(const mario::Config& config, Timing timing,
         const std::shared_ptr<const nes::Cartridge>& cartridge)
      : spec_(config),
        maximum_(config.frame_max),
        plain(cartridge, timing),
        drawing_(cartridge, timing),
        made_(spec_, timing),
        made_of_pictures_(spec_, timing),
        drawn_(spec_),
        expected_(spec_) {
    for (auto& picture : pixels_) picture.resize(nes::kScreenPixels);
  }

  /// Runs and draws the next two frames; returns whether the last is equal.
  bool AreEqual() {
    drawing_.set_state(plain.state());
    for (auto& picture : pixels_) plain.RunFrame(0, picture.data());
    drawing_.RunFrameOnto(0, maximum_ ? made_.Keep() : nullptr);
    drawing_.RunFrameOnto(0, made_.Make(&drawn_, maximum_));
    made_.Finish();
    made_of_pictures_.MakeOf(
        pixels_[1].data(), maximum_ ? pixels_[0].data() : nullptr, &expected_);
    drawn_.Push(plain.ram());
    expected_.Push(plain.ram());
    return Bytes(drawn_) == Bytes(expected_);
  }
  void Forget() { drawn_.bands().known = 0; }

 private:
  std::vector<uint8_t> Bytes(const mario::Observation& frames) const {
    std::vector<uint8_t> bytes(spec_.bytes());
    frames.CopyTo(bytes.data());
    return bytes;
  }

  const mario::ObservationSpec spec_;
  const bool maximum_;

 public:
  nes::Console plain;

 private:
  nes::Console drawing_;
  mario::Pictures made_, made_of_pictures_;
  mario::Observation drawn_, expected_;
  std::vector<uint8_t> pixels_[2];
};

TEST(Drawing, FramesMadeWhileAPictureIsDrawnAreThoseOfThePicture) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const mario::Config config = RandomConfig(random);
    const auto cartridge = MakeCartridge(random, RegisterWrites(random), true);
    Frames frames(config, seed % 3 ? Timing::kConsole : Timing::kNesPy,
                  cartridge);
    for (int pair = 0; pair < 3; ++pair) {
      ScramblePicture(random, &frames.plain);
      const bool equal = frames.AreEqual();
      if (pair == 0) continue;  // its first frame begins on line 0
      ASSERT_TRUE(equal) << "seed " << seed << ": " << config.obs_type << ", "
                         << config.hud << ", " << config.img_height << " x "
                         << config.img_width;
    }
  }
}

// A scene as in a game, with rows of one tile, of which little changes.
void MakeScene(Random& random, nes::State* state) {
  PpuState& ppu = state->ppu;
  ppu.mask = 0x1E;
  ppu.t = static_cast<uint16_t>((random() % 4 ? 0 : random()) & 0x7C1F);
  std::memset(ppu.oam, 0xF8, sizeof(ppu.oam));
  for (int row = 0; row < 64; ++row) {
    const auto tile = static_cast<uint8_t>(random() % 4);
    for (int x = 0; x < 32; ++x) {
      ppu.nametable[row * 32 + x] =
          row % 3 != 0 ? tile : static_cast<uint8_t>(random() % 6);
    }
  }
}

void ChangeScene(Random& random, nes::State* state) {
  PpuState& ppu = state->ppu;
  for (int changes = static_cast<int>(random() % 3); changes > 0; --changes) {
    const auto byte = static_cast<uint8_t>(random());
    switch (random() % 8) {
      case 0:
        ppu.nametable[random() % nes::kNametableBytes] = byte & 7;
        break;
      case 1:
        ppu.palette[random() % 32] = byte & 63;
        break;
      case 2:
        ppu.fine_x = byte & 7;
        break;
      case 3:
        ppu.t = static_cast<uint16_t>((ppu.t & ~0x041F) | (random() & 0x041F));
        break;
      case 4:
        ppu.mask ^= 1u << byte % 5;
        break;
      case 5:
        ppu.ctrl ^= byte & 0x38;
        break;
      case 6:
        ppu.t ^= byte & 1 ? 0x1000 : 0x0020;  // scrolls in y
        break;
      default: {
        uint8_t* const sprite = ppu.oam + random() % 64 * 4;
        sprite[0] = random() % 3 ? 0xF8 : static_cast<uint8_t>(random());
        sprite[1] = byte & 7, sprite[2] = byte & 0xE3;
        sprite[3] = static_cast<uint8_t>(random());
      }
    }
  }
}

TEST(Drawing, RowsThatRepeatTheFrameBeforeAreThoseOfThePicture) {
  for (uint32_t seed = 0; seed < 120; ++seed) {
    Random random(seed);
    mario::Config config = RandomConfig(random);
    config.frame_max = seed % 8 == 0;
    config.stack_num = 1 + static_cast<int>(random() % 3);
    const std::vector<uint8_t> program =
        seed % 4 ? StandsStill() : RegisterWrites(random);
    Frames frames(
        config, Timing::kConsole,
        MakeCartridge(random, program, true, /*has_plain_tiles=*/true));
    for (int frame = 0; frame < 2; ++frame) frames.plain.RunFrame(0, nullptr);
    ScramblePicture(random, &frames.plain);
    nes::State state = frames.plain.state();
    MakeScene(random, &state);
    for (int round = 0; round < 12; ++round) {
      frames.plain.set_state(state);
      ASSERT_TRUE(frames.AreEqual())
          << "seed " << seed << ", round " << round << ": " << config.obs_type
          << ", " << config.hud << ", " << config.img_height << " x "
          << config.img_width;
      if (seed % 4) state = frames.plain.state();
      ChangeScene(random, &state);
      if (random() % 16 == 0) frames.Forget();
    }
  }
}

}  // namespace
