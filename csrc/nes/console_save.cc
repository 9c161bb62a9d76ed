// Saving and loading a console, and the check that a loaded state can be run.
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "nes/console.h"

namespace nes {
namespace {

constexpr uint32_t kSaveMagic = 0x534E454D;  // "MENS"
constexpr uint32_t kSaveVersion = 3;

struct SaveHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t rom_hash;
  uint32_t prg_ram_bytes;
  uint32_t chr_ram_bytes;
};
static_assert(std::has_unique_object_representations_v<SaveHeader>);

}  // namespace

bool IsPlausible(const State& state, Timing timing) {
  const CpuState& cpu = state.cpu;
  const PpuState& ppu = state.ppu;
  const ApuState& apu = state.apu;
  const uint64_t dot = DotOfAccess(cpu.cycle);
  const bool time = cpu.cycle < uint64_t{1} << 60 && ppu.frame_dot <= dot &&
                    dot - ppu.frame_dot <= 2 * kDotsPerFrame &&
                    ppu.position < kDotsPerFrame && ppu.dot_skipped <= 1 &&
                    ppu.odd_frame <= 1 &&
                    (ppu.nmi_dot == kNever || ppu.nmi_dot <= dot);
  // The last instruction may have been an OAM DMA.
  const bool step = timing == Timing::kConsole
                        ? state.step_end == 0
                        : state.step_end <= cpu.cycle &&
                              cpu.cycle <= state.step_end + kNesPyStepCycles;
  const bool sound =
      apu.frame_start <= cpu.cycle + 8 &&
      cpu.cycle <= apu.frame_start + 40'000 && apu.frame_mode <= 1 &&
      apu.frame_step <= 5 - apu.frame_mode &&
      apu.dmc_next <= cpu.cycle + 4'000 && cpu.cycle <= apu.dmc_next + 40'000 &&
      apu.dmc_remaining <= 0xFF1;
  return time && step && sound && ppu.fine_x < 8 && ppu.v < 0x8000 &&
         ppu.t < 0x8000;
}

void Console::set_state(const State& state) {
  state_ = state;
  ppu_.ForgetPredictions();
}

size_t Console::SaveBytes() const {
  return sizeof(SaveHeader) + sizeof(State) + prg_ram_.size() +
         ppu_.chr_ram().size();
}

void Console::Save(std::byte* out) const {
  const SaveHeader header = {kSaveMagic, kSaveVersion, cartridge_->hash(),
                             static_cast<uint32_t>(prg_ram_.size()),
                             static_cast<uint32_t>(ppu_.chr_ram().size())};
  const auto put = [&out](const void* from, size_t bytes) {
    if (bytes == 0) return;  // memcpy wants a pointer even then
    std::memcpy(out, from, bytes);
    out += bytes;
  };
  put(&header, sizeof(header));
  put(&state_, sizeof(state_));
  put(prg_ram_.data(), prg_ram_.size());
  put(ppu_.chr_ram().data(), ppu_.chr_ram().size());
}

void Console::Load(std::span<const std::byte> blob) {
  SaveHeader header = {};
  const auto refuse = [](const std::string& why) {
    throw std::invalid_argument("cannot load this console state: " + why);
  };
  if (blob.size() < sizeof(header)) {
    refuse(std::to_string(blob.size()) + " bytes are too few for a header");
  }
  std::memcpy(&header, blob.data(), sizeof(header));
  if (header.magic != kSaveMagic) refuse("it is not a console state");
  if (header.version != kSaveVersion) {
    refuse("its format is version " + std::to_string(header.version) +
           ", this program reads version " + std::to_string(kSaveVersion));
  }
  if (header.rom_hash != cartridge_->hash()) {
    refuse("it was saved with another ROM");
  }
  if ((header.prg_ram_bytes != 0 && header.prg_ram_bytes != kPrgRamBytes) ||
      header.chr_ram_bytes != ppu_.chr_ram().size() ||
      blob.size() != sizeof(header) + sizeof(State) + header.prg_ram_bytes +
                         header.chr_ram_bytes) {
    refuse("its size of " + std::to_string(blob.size()) +
           " bytes does not fit its header");
  }
  const std::byte* from = blob.data() + sizeof(header);
  State state;
  std::memcpy(&state, from, sizeof(state));
  if (TimingOf(state) != timing_) {
    refuse("it was saved under the other timing");
  }
  if (!IsPlausible(state, timing_)) refuse("it is damaged");
  from += sizeof(state);
  const auto* const prg_ram = reinterpret_cast<const uint8_t*>(from);
  // The only step that may fail precedes the first change.
  std::vector<uint8_t> new_prg_ram(prg_ram, prg_ram + header.prg_ram_bytes);
  from += header.prg_ram_bytes;
  state_ = state;
  prg_ram_.swap(new_prg_ram);
  if (!ppu_.chr_ram().empty()) {
    std::memcpy(ppu_.chr_ram().data(), from, ppu_.chr_ram().size());
  }
  ppu_.ForgetPredictions();
}

}  // namespace nes
