// Frame counter, length counters and DMC reader; see apu.h.
#include "nes/apu.h"

#include <algorithm>

namespace nes {
namespace {

// Steps of the frame sequence: cycles since its beginning, and their effects.
enum : uint8_t { kQuarter = 1, kHalf = 2, kIrq = 4, kWrap = 8 };

struct FrameStep {
  uint32_t cycle;
  uint8_t action;
};

constexpr FrameStep kFourSteps[] = {
    {7457, kQuarter}, {14913, kQuarter | kHalf},        {22371, kQuarter},
    {29828, kIrq},    {29829, kQuarter | kHalf | kIrq}, {29830, kIrq | kWrap},
};
constexpr FrameStep kFiveSteps[] = {
    {7457, kQuarter},  {14913, kQuarter | kHalf},
    {22371, kQuarter}, {37281, kQuarter | kHalf},
    {37282, kWrap},
};

const FrameStep& StepOf(const ApuState& state) {
  return state.frame_mode ? kFiveSteps[state.frame_step]
                          : kFourSteps[state.frame_step];
}

constexpr uint8_t kLengths[32] = {
    10, 254, 20, 2,  40, 4,  80, 6,  160, 8,  60, 10, 14, 12, 26, 14,
    12, 16,  24, 18, 48, 20, 96, 22, 192, 24, 72, 26, 16, 28, 32, 30,
};

// NTSC: CPU cycles per bit.
constexpr uint16_t kDmcPeriods[16] = {
    428, 380, 340, 320, 286, 254, 226, 214, 190, 160, 142, 128, 106, 84, 72, 54,
};

uint64_t DmcPeriod(const ApuState& state) {
  return kDmcPeriods[state.dmc_control & 0x0F];
}

}  // namespace

void Apu::PowerOn() {
  s_ = {};
  s_.irq_cycle = s_.dmc_irq_cycle = kNever;
  s_.dmc_next = DmcPeriod(s_) * 8;
}

void Apu::Reset(uint64_t cycle) {
  CatchUp(cycle);
  WriteEnable(0);
  s_.irq_cycle = kNever;
  WriteFrameCounter(
      static_cast<uint8_t>(s_.frame_mode << 7 | s_.frame_inhibit << 6), cycle);
}

void Apu::CatchUp(uint64_t cycle) {
  while (s_.frame_start + StepOf(s_).cycle <= cycle) ClockFrame();
  if (s_.dmc_next <= cycle) RunDmc(cycle);
}

void Apu::ClockFrame() {
  const FrameStep step = StepOf(s_);
  const uint64_t now = s_.frame_start + step.cycle;
  if (step.action & kHalf) ClockLengths();
  if ((step.action & kIrq) && !s_.frame_inhibit && s_.irq_cycle == kNever) {
    s_.irq_cycle = now;
  }
  ++s_.frame_step;
  if (step.action & kWrap) {
    s_.frame_start = now;
    s_.frame_step = 0;
  }
}

void Apu::ClockLengths() {
  for (int i = 0; i < 4; ++i) {
    if (s_.length[i] > 0 && !s_.halt[i]) --s_.length[i];
  }
}

uint64_t Apu::IrqCycle() const {
  uint64_t at = std::min(s_.irq_cycle, s_.dmc_irq_cycle);
  if (at == kNever && !s_.frame_mode && !s_.frame_inhibit) {
    at = s_.frame_start + kFourSteps[std::max<int>(s_.frame_step, 3)].cycle;
  }
  return at;
}

// --- DMC. The output unit takes a byte every eight bits; the reader fills the
// one-byte buffer as soon as it is empty.

void Apu::RunDmc(uint64_t cycle) {
  while (s_.dmc_next <= cycle) {
    s_.dmc_full = 0;
    s_.dmc_next += DmcPeriod(s_) * 8;
  }
}

uint64_t Apu::DmcFetchCycle() const {
  if (s_.dmc_remaining == 0) return kNever;
  return s_.dmc_full ? s_.dmc_next : 0;
}

void Apu::FinishDmcFetch(uint64_t cycle) {
  CatchUp(cycle);
  s_.dmc_full = 1;
  if (--s_.dmc_remaining > 0) return;
  if (s_.dmc_control & 0x40) {
    RestartSample();
  } else if (s_.dmc_control & 0x80) {
    s_.dmc_irq_cycle = cycle;
  }
}

// --- Registers --------------------------------------------------------------

uint8_t Apu::ReadStatus(uint64_t cycle) {
  CatchUp(cycle);
  uint8_t status = 0;
  for (int i = 0; i < 4; ++i) {
    status |= static_cast<uint8_t>((s_.length[i] > 0) << i);
  }
  if (s_.dmc_remaining > 0) status |= 0x10;
  if (s_.irq_cycle != kNever) status |= 0x40;
  if (s_.dmc_irq_cycle != kNever) status |= 0x80;
  s_.irq_cycle = kNever;
  return status;
}

void Apu::WriteRegister(unsigned address, uint8_t value, uint64_t cycle) {
  CatchUp(cycle);
  const unsigned channel = (address >> 2) & 3;
  switch (address) {
    case 0x4000:
    case 0x4004:
    case 0x400C:
      s_.halt[channel] = value >> 5 & 1;
      break;
    case 0x4008:
      s_.halt[channel] = value >> 7;
      break;
    case 0x4003:
    case 0x4007:
    case 0x400B:
    case 0x400F:
      if (s_.enabled >> channel & 1) s_.length[channel] = kLengths[value >> 3];
      break;
    case 0x4010:
      s_.dmc_control = value;
      if (!(value & 0x80)) s_.dmc_irq_cycle = kNever;
      break;
    case 0x4013:
      s_.dmc_length = value;
      break;
    case 0x4015:
      WriteEnable(value);
      break;
    case 0x4017:
      WriteFrameCounter(value, cycle);
      break;
    default:
      break;  // sound only
  }
}

void Apu::WriteEnable(uint8_t value) {
  s_.enabled = value & 0x0F;
  for (int i = 0; i < 4; ++i) {
    if (!(value >> i & 1)) s_.length[i] = 0;
  }
  s_.dmc_irq_cycle = kNever;
  if (!(value & 0x10)) {
    s_.dmc_remaining = 0;
  } else if (s_.dmc_remaining == 0) {
    RestartSample();
  }
}

void Apu::RestartSample() {
  s_.dmc_remaining = static_cast<uint16_t>(s_.dmc_length * 16 + 1);
}

// The sequence restarts three or four cycles after the write, on the APU's own
// half-rate clock; five-step mode clocks everything at once.
void Apu::WriteFrameCounter(uint8_t value, uint64_t cycle) {
  s_.frame_mode = value >> 7;
  s_.frame_inhibit = value >> 6 & 1;
  if (s_.frame_inhibit) s_.irq_cycle = kNever;
  s_.frame_start = cycle + (cycle & 1 ? 3 : 4);
  s_.frame_step = 0;
  if (s_.frame_mode) ClockLengths();
}

}  // namespace nes
