// The bus, the run from event to event, input and output, saving.
#include "nes/console.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "nes/cpu.h"

namespace nes {
namespace {

constexpr uint32_t kSaveMagic = 0x534E454D;  // "MENS"
constexpr uint32_t kSaveVersion = 2;
constexpr size_t kWorkRamBytes = 8192;
constexpr uint64_t kPollMargin = 16;  // cycles kept clear of any event

struct SaveHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t rom_hash;
  uint32_t work_ram_bytes;
  uint32_t chr_ram_bytes;
};
static_assert(std::has_unique_object_representations_v<SaveHeader>);

}  // namespace

bool IsPlausible(const State& state) {
  const CpuState& cpu = state.cpu;
  const PpuState& ppu = state.ppu;
  const ApuState& apu = state.apu;
  constexpr uint64_t kFrameDots = 262 * 341;
  const uint64_t dot = DotOfAccess(cpu.cycle);
  const bool time = cpu.cycle < uint64_t{1} << 60 && ppu.frame_dot <= dot &&
                    dot - ppu.frame_dot <= 2 * kFrameDots &&
                    ppu.position < kFrameDots &&
                    (ppu.nmi_dot == kNever || ppu.nmi_dot <= dot);
  const bool sound =
      apu.frame_start <= cpu.cycle + 8 &&
      cpu.cycle <= apu.frame_start + 40'000 && apu.frame_mode <= 1 &&
      apu.frame_step <= 5 - apu.frame_mode &&
      apu.dmc_next <= cpu.cycle + 4'000 && cpu.cycle <= apu.dmc_next + 40'000 &&
      apu.dmc_remaining <= 0xFF1;
  return time && sound && ppu.fine_x < 8 && ppu.v < 0x8000 && ppu.t < 0x8000;
}

// What the CPU sees. RAM and PRG are two compares; everything else is out of
// line and brings its exact cycle along.
class ConsoleBus {
 public:
  explicit ConsoleBus(Console* console)
      : console_(*console), prg_(console->cartridge_->prg()) {}

  uint8_t* ram() { return console_.state_.ram; }
  const uint8_t* rom() const { return console_.fast_loop_ ? prg_ : nullptr; }
  const uint8_t* dispatch() const { return console_.cartridge_->dispatch(); }
  uint64_t limit() const { return console_.limit_; }
  bool idle_skip() const { return console_.idle_skip_; }

  uint32_t Fetch(unsigned pc, uint64_t cycle) {
    if (pc >= 0x8000) [[likely]] {
      return LoadCode(prg_ + (pc & 0x7FFF));
    }
    return FetchElsewhere(pc, cycle);
  }

  uint8_t Read(unsigned address, uint64_t cycle) {
    if (address < 0x2000) return console_.state_.ram[address & 0x7FF];
    if (address >= 0x8000) return prg_[address & 0x7FFF];
    return console_.ReadIo(address, cycle);
  }

  unsigned Write(unsigned address, uint8_t value, uint64_t cycle) {
    if (address < 0x2000) {
      console_.state_.ram[address & 0x7FF] = value;
      return 0;
    }
    if (address >= 0x8000) return 0;
    return console_.WriteIo(address, value, cycle);
  }

  void DummyRead(unsigned address, uint64_t cycle) {
    if (address - 0x2000 < 0x2020) console_.ReadIo(address, cycle);
  }

  void InterruptFlagChanged(uint64_t earliest, unsigned flag) {
    if (flag == 0) console_.LimitToIrq(earliest);
  }

  unsigned BreakVector(uint64_t cycle) {
    const unsigned vector = console_.IrqVector(cycle);
    console_.UpdateLimit();
    return vector;
  }

  uint64_t SkippablePollCycles(unsigned loop_pc, uint64_t cycle);

 private:
  // Code outside the ROM: RAM, or registers, which only tests execute.
  uint32_t FetchElsewhere(unsigned pc, uint64_t cycle) {
    uint32_t code = Read(pc, cycle);
    const int bytes = InstructionBytes(kOpcodes[code].mode);
    for (int i = 1; i < bytes; ++i) {
      const unsigned at = (pc + static_cast<unsigned>(i)) & 0xFFFF;
      code |= static_cast<uint32_t>(Read(at, cycle + static_cast<unsigned>(i)))
              << (8 * i);
    }
    // One-byte instructions read the byte behind them and forget it.
    if (bytes == 1) DummyRead((pc + 1) & 0xFFFF, cycle + 1);
    return code;
  }

  Console& console_;
  const uint8_t* prg_;
};

// `LDA $2002; AND #$40; Bxx` that branches back: while the hit flag does not
// change, every round is the same. Registers and flags at the loop's start
// equal those at its end, so whole rounds can be left out; the last one before
// anything could differ runs for real.
uint64_t ConsoleBus::SkippablePollCycles(unsigned loop_pc, uint64_t cycle) {
  if (loop_pc < 0x8000 || loop_pc > 0xFFF8) return 0;
  const uint8_t* code = prg_ + (loop_pc & 0x7FFF);
  if (code[0] != 0xAD || code[1] != 0x02 || code[2] != 0x20 ||
      code[3] != 0x29 || code[4] != 0x40 || (code[5] & 0xDF) != 0xD0) {
    return 0;
  }
  const unsigned next_pc = loop_pc + 7;
  const uint64_t round = (next_pc ^ loop_pc) >> 8 ? 10 : 9;
  const uint64_t change = console_.ppu_.NextHitChangeDot();
  uint64_t end = limit();
  if (change != kNever) end = std::min(end, CycleOfEdge(change));
  if (end < cycle + kPollMargin + round) return 0;
  return (end - kPollMargin - cycle) / round * round;
}

Console::Console(std::shared_ptr<const Cartridge> cartridge)
    : state_{},
      cartridge_(std::move(cartridge)),
      ppu_(*cartridge_, &state_.ppu),
      apu_(&state_.apu) {
  PowerOn();
}

void Console::PowerOn() {
  state_ = {};
  work_ram_.clear();
  std::ranges::fill(ppu_.chr_ram(), uint8_t{0});
  ppu_.PowerOn();
  apu_.PowerOn();
  state_.cpu.sp = 0xFD;
  state_.cpu.p = 0x34;
  state_.cpu.i_change = kNever;
  state_.cpu.pc = static_cast<uint16_t>(Peek(0xFFFC) | Peek(0xFFFD) << 8);
  state_.cpu.cycle = 7;
}

void Console::Reset() {
  CpuState& cpu = state_.cpu;
  cpu.cycle += 7;
  cpu.sp = static_cast<uint8_t>(cpu.sp - 3);
  cpu.p |= 0x04;
  cpu.jammed = 0;
  cpu.pc = static_cast<uint16_t>(Peek(0xFFFC) | Peek(0xFFFD) << 8);
  ppu_.CatchUp(DotOfAccess(cpu.cycle - 1));
  ppu_.Reset();
  apu_.Reset(cpu.cycle - 4);
}

// --- Running ----------------------------------------------------------------

// A frame is over when the CPU has come to the point at which it would take
// the next frame's NMI. The PPU may have entered that frame a little earlier,
// when a register was read just then.
uint64_t Console::FrameEndCycle() const {
  const uint64_t vblank = state_.ppu.frame_dot == frame_dot_
                              ? ppu_.NextVblankDot()
                              : state_.ppu.frame_dot + 1;
  return CycleOfEdge(vblank) + 2;
}

bool Console::FrameOver() const { return state_.cpu.cycle >= FrameEndCycle(); }

void Console::RunFrame(uint8_t buttons, uint8_t* pixels) {
  state_.pad.buttons[0] = buttons;
  ppu_.set_output(pixels);
  frame_dot_ = state_.ppu.frame_dot;
  last_limit_ = kNever;
  ConsoleBus bus(this);
  while (!FrameOver()) {
    ServiceEvents();
    RunCpu(&state_.cpu, bus);
  }
  ppu_.CatchUp(DotOfAccess(state_.cpu.cycle - 1));
  apu_.CatchUp(state_.cpu.cycle - 1);
  ppu_.set_output(nullptr);
}

void Console::StepInstruction() {
  ppu_.set_output(nullptr);
  frame_dot_ = state_.ppu.frame_dot;
  ConsoleBus bus(this);
  last_limit_ = state_.cpu.cycle + 1;
  ServiceEvents();
  last_limit_ = state_.cpu.cycle + 1;
  UpdateLimit();
  RunCpu(&state_.cpu, bus);
  ppu_.CatchUp(DotOfAccess(state_.cpu.cycle - 1));
  apu_.CatchUp(state_.cpu.cycle - 1);
}

// Interrupts are polled before the last cycle of an instruction, so one that
// rises in cycle c is taken when the instruction ends at c + 2 or later
// (NESdev "CPU interrupts").
void Console::ServiceEvents() {
  CpuState& cpu = state_.cpu;
  StealDmcCycles();
  if (state_.ppu.nmi_dot != kNever &&
      CycleOfEdge(state_.ppu.nmi_dot) + 2 <= cpu.cycle) {
    state_.ppu.nmi_dot = kNever;
    Interrupt(0xFFFA);
  } else {
    const unsigned masked =
        cpu.cycle == cpu.i_change ? cpu.i_before : cpu.p & 4u;
    if (!masked && apu_.IrqCycle() + 2 <= cpu.cycle &&
        apu_.IrqCycle() != kNever) {
      Interrupt(0xFFFE);
    }
  }
  UpdateLimit();
  // At least one instruction runs between two polls.
  limit_ = std::max(limit_, cpu.cycle + 1);
}

void Console::Interrupt(unsigned vector) {
  CpuState& cpu = state_.cpu;
  if (cpu.jammed) return;
  const uint8_t pushed[3] = {static_cast<uint8_t>(cpu.pc >> 8),
                             static_cast<uint8_t>(cpu.pc),
                             static_cast<uint8_t>((cpu.p & ~0x10) | 0x20)};
  for (uint8_t byte : pushed) state_.ram[0x100 + cpu.sp--] = byte;
  cpu.p |= 0x04;
  cpu.cycle += 7;
  if (vector == 0xFFFE) vector = IrqVector(cpu.cycle);
  cpu.pc = static_cast<uint16_t>(Peek(static_cast<uint16_t>(vector)) |
                                 Peek(static_cast<uint16_t>(vector + 1)) << 8);
}

// The vector of an IRQ or BRK sequence that ends at `end`: an NMI that comes
// during its pushes takes it over.
unsigned Console::IrqVector(uint64_t end) {
  uint64_t& nmi_dot = state_.ppu.nmi_dot;
  ppu_.CatchUp(DotOfAccess(end - 3));
  if (nmi_dot == kNever || CycleOfEdge(nmi_dot) > end - 3) return 0xFFFE;
  nmi_dot = kNever;
  return 0xFFFA;
}

// The DMC halts the CPU for four cycles a sample byte. Approximation: between
// instructions, not in the middle of one.
void Console::StealDmcCycles() {
  while (apu_.DmcFetchCycle() <= state_.cpu.cycle) {
    state_.cpu.cycle += 4;
    apu_.FinishDmcFetch(state_.cpu.cycle);
  }
}

void Console::UpdateLimit() {
  limit_ = std::min(last_limit_, FrameEndCycle());
  limit_ = std::min(limit_, apu_.DmcFetchCycle());
  if (state_.ppu.nmi_dot != kNever) {
    limit_ = std::min(limit_, CycleOfEdge(state_.ppu.nmi_dot) + 2);
  }
  if (!(state_.cpu.p & 4)) LimitToIrq(0);
}

void Console::LimitToIrq(uint64_t earliest) {
  const uint64_t irq = apu_.IrqCycle();
  if (irq != kNever) limit_ = std::min(limit_, std::max(irq + 2, earliest));
}

// --- Input and output -------------------------------------------------------

uint8_t Console::ReadIo(unsigned address, uint64_t cycle) {
  // Nobody drives the bus: the last byte on it was the address's high byte.
  const auto open_bus = static_cast<uint8_t>(address >> 8);
  if (address < 0x4000) {
    const uint8_t value = ppu_.ReadRegister(address, cycle);
    UpdateLimit();
    return value;
  }
  if (address == 0x4015) {
    const uint8_t value = apu_.ReadStatus(cycle);
    UpdateLimit();
    return static_cast<uint8_t>(value | (open_bus & 0x20));
  }
  if (address == 0x4016 || address == 0x4017) {
    return ReadPad(static_cast<int>(address & 1), address);
  }
  if (address >= 0x6000 && !work_ram_.empty()) {
    return work_ram_[address & 0x1FFF];
  }
  return open_bus;
}

unsigned Console::WriteIo(unsigned address, uint8_t value, uint64_t cycle) {
  unsigned halted = 0;
  if (address < 0x4000) {
    ppu_.WriteRegister(address, value, cycle);
  } else if (address == 0x4014) {
    halted = StartOamDma(value, cycle);
  } else if (address == 0x4016) {
    WriteStrobe(value);
  } else if (address < 0x4018) {
    apu_.WriteRegister(address, value, cycle);
  } else if (address >= 0x6000) {
    if (work_ram_.empty()) work_ram_.resize(kWorkRamBytes);
    work_ram_[address & 0x1FFF] = value;
  }
  UpdateLimit();
  return halted;
}

uint8_t Console::ReadPad(int pad, unsigned address) {
  PadState& pads = state_.pad;
  if (pads.strobe) pads.shift[pad] = pads.buttons[pad];
  const uint8_t bit = pads.shift[pad] & 1;
  // After the eight buttons an official pad answers 1.
  if (!pads.strobe) pads.shift[pad] = pads.shift[pad] >> 1 | 0x80;
  return static_cast<uint8_t>((address >> 8 & 0xE0) | bit);
}

void Console::WriteStrobe(uint8_t value) {
  PadState& pads = state_.pad;
  const uint8_t strobe = value & 1;
  if (pads.strobe && !strobe) {
    std::memcpy(pads.shift, pads.buttons, sizeof(pads.shift));
  }
  pads.strobe = strobe;
}

// 256 reads and writes, one cycle to halt, and one more to get in step with
// the even cycles on which reads happen (NESdev "DMA").
unsigned Console::StartOamDma(uint8_t page, uint64_t cycle) {
  const unsigned base = page << 8u;
  if (base < 0x2000) {
    ppu_.WriteOam(state_.ram + (base & 0x7FF), cycle);
  } else {
    uint8_t bytes[256];
    for (unsigned i = 0; i < 256; ++i) {
      bytes[i] = base < 0x6000 ? ReadIo(base + i, cycle + 2 + 2 * i)
                               : Peek(static_cast<uint16_t>(base + i));
    }
    ppu_.WriteOam(bytes, cycle);
  }
  return 513 + (cycle & 1 ? 0 : 1);
}

uint8_t Console::Peek(uint16_t address) const {
  if (address < 0x2000) return state_.ram[address & 0x7FF];
  if (address >= 0x8000) return cartridge_->prg()[address & 0x7FFF];
  if (address >= 0x6000 && !work_ram_.empty()) {
    return work_ram_[address & 0x1FFF];
  }
  return 0;
}

// --- Saving -----------------------------------------------------------------

void Console::set_state(const State& state) {
  state_ = state;
  ppu_.ForgetPredictions();
}

size_t Console::SaveBytes() const {
  return sizeof(SaveHeader) + sizeof(State) + work_ram_.size() +
         ppu_.chr_ram().size();
}

void Console::Save(std::byte* out) const {
  const SaveHeader header = {kSaveMagic, kSaveVersion, cartridge_->hash(),
                             static_cast<uint32_t>(work_ram_.size()),
                             static_cast<uint32_t>(ppu_.chr_ram().size())};
  const auto put = [&out](const void* from, size_t bytes) {
    if (bytes == 0) return;  // memcpy wants a pointer even then
    std::memcpy(out, from, bytes);
    out += bytes;
  };
  put(&header, sizeof(header));
  put(&state_, sizeof(state_));
  put(work_ram_.data(), work_ram_.size());
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
  if ((header.work_ram_bytes != 0 && header.work_ram_bytes != kWorkRamBytes) ||
      header.chr_ram_bytes != ppu_.chr_ram().size() ||
      blob.size() != sizeof(header) + sizeof(State) + header.work_ram_bytes +
                         header.chr_ram_bytes) {
    refuse("its size of " + std::to_string(blob.size()) +
           " bytes does not fit its header");
  }
  const std::byte* from = blob.data() + sizeof(header);
  State state;
  std::memcpy(&state, from, sizeof(state));
  if (!IsPlausible(state)) refuse("it is damaged");
  state_ = state;
  from += sizeof(state_);
  work_ram_.resize(header.work_ram_bytes);
  if (!work_ram_.empty()) std::memcpy(work_ram_.data(), from, work_ram_.size());
  from += work_ram_.size();
  if (!ppu_.chr_ram().empty()) {
    std::memcpy(ppu_.chr_ram().data(), from, ppu_.chr_ram().size());
  }
  ppu_.ForgetPredictions();
}

}  // namespace nes
