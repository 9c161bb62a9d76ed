; A stand-in for the game, ours from the first byte: it keeps work RAM as Super
; Mario Bros. does, as far as the task looks at it (csrc/mario/ram_map.h), so that
; starts, deaths, pipes, mazes, flags, ends of worlds and game over can be tested
; without a ROM. Buttons make things happen at certain frames.
;
;   $f0 buttons   $f1 frame counter   $f2 frames left of a wait
;
; tests/fuzz/stand_in_rom.inc holds the assembled bytes for the C++ tests.

reset:
    ldx #$ff
    txs
    lda #0
    tax
clear:
    sta $00,x
    sta $0200,x
    sta $0300,x
    sta $0400,x
    sta $0500,x
    sta $0600,x
    sta $0700,x
    inx
    bne clear
    lda #$08            ; under the player's control
    sta $0e
    lda #1
    sta $0770           ; in a stage
    sta $b5             ; on the screen
    lda #4
    sta $07f8           ; clock 400
    lda #2
    sta $075a           ; lives left
    lda #$90
    sta $2000
    lda #$1e
    sta $2001
forever:
    jmp forever

nmi:
    lda #1
    sta $4016
    lsr
    sta $4016
    ldx #8
pad:
    lda $4016
    lsr
    ror $f0
    dex
    bne pad
    inc $f1

    lda #$02            ; something to see: sprites, a colour, scrolling
    sta $4014
    lda $86
    sta $0203
    sta $0200
    bit $2002
    lda #$3f
    sta $2006
    stx $2006
    lda $f1
    sta $2007
    lda $86
    sta $2005
    stx $2005

    lda $f1             ; the clock, three digits
    and #$0f
    bne ticked
    dec $07fa
    bpl ticked
    lda #9
    sta $07fa
    dec $07f9
    bpl ticked
    sta $07f9
    dec $07f8
    bpl ticked
    lda #4
    sta $07f8
ticked:

    lda $0770           ; the end of a world lasts 32 frames
    cmp #2
    bne in_world
    dec $f2
    bne done
    lda #1
    sta $0770
    inc $075f
    jmp next_room
in_world:
    lda $0e
    cmp #$06            ; dead: one life less, then a wait
    bne alive
    dec $075a
    lda #0
    sta $0e
    lda #5
    sta $f2
done:
    rti
alive:
    cmp #$08
    beq control
    cmp #$0b            ; dying stays until the task cuts it short
    beq done
    dec $f2             ; anything else is a wait
    bpl done
next_room:
    lda #$08
    sta $0e
    lda #1
    sta $b5
    lda #0
    sta $16
    sta $1d
    rti

control:
    lda $f0
    bpl not_right
    inc $86
    bne not_right
    inc $6d
not_right:
    lda $f0
    and #$40
    beq not_left
    dec $86
    lda $f1             ; left: a maze asks, and answers eight frames later
    and #$0f
    bne not_asked
    inc $0745
not_asked:
    cmp #8
    bne not_left
    lda #0
    sta $0745
    sta $6d
not_left:
    lda $f0
    and #3
    beq done
    tax
    lda $f1
    dex
    beq only_a
    dex
    beq only_b
    and #$3f            ; A and B: dies
    bne done
    lda #$0b
    sta $0e
    rti
only_a:                 ; A: points and coins, then the flag
    inc $07e3
    inc $07ee
    and #$7f
    cmp #$20
    bne done2
    lda #$31
    sta $16
    lda #3
    sta $1d
    inc $075c
    lda $075c
    and #3
    bne walks_off
    sta $075c
    lda #2              ; after four stages the world is over
    sta $0770
    lda #32
    sta $f2
    rti
walks_off:
    lda #4
    sta $0e
    lda #12
    sta $f2
done2:
    rti
only_b:                 ; B: a pipe to another room
    and #$1f
    bne done2
    lda #3
    sta $0e
    lda #6
    sta $f2
    inc $074f
    inc $0756
    inc $0760
    lda #0
    sta $6d
    rti
