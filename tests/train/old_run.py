"""A run as an earlier version wrote it, file by file: every later one must open it, predict with it and resume it."""

from __future__ import annotations

import base64
import lzma
from pathlib import Path

HOUSES = """\
size,city,price
138.3,Ulm,343.7
37.0,Kiel,134.0
168.3,Ulm,426.1
133.1,Kiel,387.0
122.4,Ulm,287.1
168.7,Kiel,462.4
175.8,Ulm,436.1
154.0,Kiel,414.1
176.7,Ulm,437.1
81.0,Kiel,258.0
34.8,Ulm,107.5
144.0,Kiel,405.3
134.6,Ulm,337.9
199.5,Kiel,525.0
146.5,Ulm,369.7
147.0,Kiel,404.5
53.0,Ulm,140.5
119.3,Kiel,343.6
112.6,Ulm,279.5
188.8,Kiel,534.4
127.2,Ulm,340.6
131.0,Kiel,379.3
96.6,Ulm,236.7
68.6,Kiel,240.9
44.3,Ulm,130.4
163.8,Kiel,431.4
179.0,Ulm,457.4
87.1,Kiel,263.8
106.6,Ulm,276.8
69.2,Kiel,203.1
98.8,Ulm,229.4
45.4,Kiel,146.1
80.8,Ulm,198.1
63.9,Kiel,219.6
92.1,Ulm,197.1
136.9,Kiel,392.6
104.9,Ulm,252.9
115.0,Kiel,336.1
135.4,Ulm,318.8
191.3,Kiel,532.3
"""
NEW = "size,city\n80,Ulm\n120,Kiel\n"

# What `bayesianize predict old new.csv --coverage 0.8 --json` said.
ANSWERS = {
    "run": "old",
    "task": "regression",
    "draws": 20,
    "seed": 0,
    "level": 0.9,
    "threshold": 121.82307219878466,
    "by": "total",
    "validation": {
        "inputs": 8,
        "samples": 20,
        "targets": [
            {
                "threshold": 121.82307219878466,
                "answered": 0.875,
                "rmse": 111.87830647522348,
                "rmse_of_all": 105.47688540176341,
            }
        ],
    },
    "rows": [
        {
            "input": "line 2",
            "mean": 365.4140707,
            "low": 165.033337,
            "high": 565.7948053,
            "total": 121.822839,
            "aleatoric": 121.8223656,
            "epistemic": 0.3390563509,
            "answer": 365.4140707,
        },
        {
            "input": "line 3",
            "mean": 361.2950946,
            "low": 160.9145034,
            "high": 561.6756868,
            "total": 121.8227542,
            "aleatoric": 121.8223656,
            "epistemic": 0.3063641187,
            "answer": 361.2950946,
        },
    ],
}

# LZMA in base 85.
FILES = {
    "evaluation.json": (
        "T>t<81poj4|NsC0{{TILfB_=o!2k!by4PNI-elsUWqZ|=<s+8Pgpx<aOy?(9elAVl_8dRt^&>Q|%@hzqV)&zi2&Q!_uz{XUfj|#j1!McWx^M"
        "Z4{n&Gkf_rE}P|`v0nNMYZq3tEJ?$$-S7n0=tE7!efD4yFPz?MIy^mtlc!z#7}JGl|o(T)G_j{Ig(-do~Kf6W%LK$=+A@Lw4+fsOSF8(^ui`"
        "(?@tUNnBDdrdSl+jk^hC|8OdK`B}u03;Gv4#@sGV-R!O%94Dp6s_T-*Duwe09;Ue7pC1P_RQw0n<XuM)-1l6Gu#`73fu@^QF~3P+WH_vaJQk"
        "Y)Hu*_9q3!YUuE<Daii$S9W$cY(@JeSj<FomxCg#Pjm-MK!8>1Y<jr-&F{=w1x(4J%ohm^=#gI(A3n)!HLaZXHc1d9W&up*I%5BR%D<5y%gc"
        "<uph@}-7E5dt~d{RzGo8vI4m@rC8EXXGxh61-mk{OBGGr0O2Cng3zK~T%<N?psMMy^DG>2<xiw=eYT6zy>Zd*K+o%rl}bT_lbm2l>z1D#vYw"
        "=1E4$jVX$WWy!VY^*8XrcN}SO5r>8rH8vBQ0-P>My1SRJgl-ehc&TpyGjwlb{c-qI1(9U>%$3R#S6NK1Zh*yyo|BG=qqw5*KysQ)^dbUJg>+"
        "<PkELHlA#3s&=8VWRm1%6VG2WaE&s{fVU+#m8LIqD<Q_P$9S@)ld^0bl8Z@vm(<iD`H$dh~X1y52qhEot=m94)1LzTyF(zA90*FdoIOD6Gv9"
        "RRRd9$J*ei5}PKk!t7A;o(a!B<71LfkSnw$J@%*FP-TEmcRLU+d5T0kmyFyGAjxcccASDY^D0De!fjjI19V6iaNDdEqEFEan!-gde@&LYna;"
        "%jziv0%+<kexDi@o$<xqyn8@W`+sA+p61#=*Ll6?$g=@8yGyLJ{7!)iBuc}53d>2FJJSSp{MKWZEeZYsM=hXsv#r%q87Pe;>5KSQAKuJTJL$"
        "qwx;Z_ih9ac$<jX-l_%6T;5NUZT4hLC{;cKWnX85K}l{l(4Q82}@}{%?(ijy|$FqUj*UmRLtUh*4zIrq=oOEytxNdn8*h%6or7%PzUxAI#N$"
        "aCXtx+pe1qr<Bs+`#m?UYWy1=XnIv&3?pu85_+Tsl{hU*G$rH;Z{QQeN;=p*Kx+sSRJX~7UEngb2rTaeaWNQO;{VXsO`|@GVv%5cs<M>M$M5"
        "d%MGK0d@E#yL(5e-3b9|oL-y4i|)9utvGA@yWh9NWhIaeHG$TzMv+mRCnCkGsWUscle*#QjNbc?8;8=Bk2HzGlX{aprkwOzC&0x~pe1O!{|e"
        "DAlR$u|=M3Me6a8ra4m@v=y4FEDv?Vz6yH59rJgY=na)-)dYVg=U(;zkZ~eRz=L7%w;4rCGMIGJw@%*Wq4D@cv^C*m5ivYriwBBoh8hspsMw"
        "(%wd$8bRR!j1|Vzq3`>q&R3JyE+?0cCM{)X2)5$(U^HGCjm(W{`Se67~CJyvk*5@Fw!ItT|<@rYU7aHl_!HQUUPtFKqjJU-r$G6^jJ_C-wlS"
        "i}tZ-Ncg>7m3z$7DPgA)ZVu13|Hrzr8a3OIF5UPNO9m467i6PQmJQ;Hk_mv<)2@azY;iR!MO6`hRvcXLk)Z3O|@pKCE73kO+7V^bd3T%zaJZ"
        "i&{6P>3x83PK>P!;vYs}YN;UoBOoLB4?A+y1+`aJY<*<Zo=)|HHs>(+?7=6{t~}ip-aHr%|M)bAGy"
    ),
    "recipe.json": (
        "T>t<81poj4|NsC0{{TILfB_=Y4WWCH`BD}6pg6XN=m-A34i879)gn^icm}RqYy6mSR>;kg3__&y3rC2K&Lw4)(UW<1+Zixqk@Guqz)(<E)4O"
        "Mp&pWLr=C{=h4#Et^%tIa%Dn~jQr)z6lViq9cJ}KgOXPUY(1Q@CGgcz_&LgxKcxj*6MpD{#5`&H^G^>4U#cy4HR{MmUW$Lu&=@9l-0%~$7Ia"
        "#<8m>4LggG1X*e28zBo0MQ27PkXATdDPCotcJs5NJK||hXX}3w@X;itbNeh?T(}SKXgcW*;TsEkUR3_mrKPEH$*gLd3<F%X&OmLLba0t?sHH"
        "FRemm=SE7OKqI1LLqIyPf)za4o3P(Qe`&4X6<(9A!*~8rfNXr#MvoA=yX$7;S0;uAjKuy9FYvb`k`M>?6|5Hb&Nh2yzdHI=m{BB9rIt)Qg4Q"
        "6H&>G|&=0&5}C%%j{Cw3NmF34$npKvo+rrw*dgnnYkiZN3-rAR3vDYMoNiU<9<2?|plB1}CCoES4IUa8E_m_xJ7xUeHLy?5u0=ZLg|C{Xca7"
        ">Wbes"
    ),
    "run.json": (
        "T>t<81poj4|NsC0{{TILfB_>$W^?2yKwI&bZ4*1m-&fVzXNlaC0Xk7^J=92Nw*^cqa&3J*yx8mz!A)K2Aj~i8^sHur{K$kd(*3yNn?bzs0fa"
        "Yb^NoC^^Ouq-SdH~VPT_iR%QC~KXXEfamvuA}sFo$&=Fw!p9+$r!Gwjm>P;B*J?^X(&R*{>$gxr4|RF-7X@Z+PZ_>T~wv)ZDPTgI?My0`~k="
        "H=MC>SFc>(*2G|si$WHW)h?6uRa4m$X!1=7^!~nbNBmxVxcPa?aFcx4!^36hQvGC?zn8Ikco@)&h*WOWTY-qtMKe&dDqEBFVeRO3$}~3C_h>"
        ")$`=OvamVyEbTN)_ne6G`>>$m{11ws3uEDfrU)0;|5_q7JgoQeUGUL(}H?u(UsNS~;y9+Y-gD47Dc(PMMag3Cp2Vu6Y!En3soW7mJ%mL^Pt0"
        "q8z@!_Z;9S6qOWiqN7Lj}B{t+oqM*e-p$1m4g{_9WvkQ&XK2fR(gv;>B~e_<u5IFCb`XxoGWkqtOW-dx@%wm^I8UpqKrb;GmOa{3WI!(wBQe"
        "j8SeXqjG5rNpLxwF}c*unUbK&t&W;aj3-19-gfEZWzL#v-1pqhdP;nCNS686?8qA9Y9WL@u3X5AQds<ThNV`y*=6FqPhni%JWllircPTEG^_"
        "qw(MY?kcnL{j%Bux$9vgE*kx*~&ZrI|P3tyVkO%Ckfm^zl*$XSdgM?=}}V49oTW6#d3NpzsCiv}^%;$FJwV$}%xSt4jX+JZ*oAKGZ?Um$zBH"
        "xHO5xa;R+E^CN(;r7o}yvrtA&(PYv{IX%c?mYW^3P`b?<P2eUT(*vH(V(1iYh`bR$83m}%U`aXbCiZtU`!U3t-WY9EwxC6OLcVvhdO~027?9"
        "ZKYiBiP?{T*60s5YvH4xyn=`-zWveU>p#;^Fu2f+-$(5v%hh4uCBcclYzDPa"
    ),
    "train/metrics.jsonl": (
        "T>t<81poj4|NsC0{{TIRh^IsY@Vfe(+PWoo5K!+6G6YmJRiJ%nI3h?5VuJW8R`O6|!FfT@ns}w^?e~7Il{tHmNBN4<c)!}E#D`lHS(`UtBA9"
        "9$9WI7<CH1LRmV}Ay2vBWl4@#W==gJ5~zZtqYHxV42cMbMq2=97+4>i&zUqU(&ush$eK+{N96&$zA7tbJJnA|7DHBoL4+L$nzk2+Fa15omyK"
        "d2jgilw-5ZIvR?a78gIfBY}_(>i}6XUHC|HpfbDjS=LBZ)H@xbE6|S=7?cT-vm;u8E1VH3fU>7oUng8m*S~Laq-+h1;1gKwf?1bO}i`~{^8|"
        "S"
    ),
    "train/run.json": (
        "T>t<81poj4|NsC0{{TILfB_>$W^?2yKwI&bV5th{{nn9P`{jwXP>7}*OHqqua~$N76gDnbe<BZXbP)T8hdxYiR9Ez_qwkAi5CQ(JXkPp{@v2"
        "M^sIhj}vOr;eVOIxsi(CNLlJ=TAWz*OolW<8RiEs>ZM=VXJTg&unkiDE9k*KP(qEBg|f0|ZV{a<<Lvof3bsZCV*v7$bWpn4^H;E4K};hvA)`"
        "Z6S6yj-~nq!&@;i<D?avXh4FD?QTh)IT!Yo?&R_eXehlSO(soWVD^$kVL@k#N6}qq3t~&hFUo7Chh&}@@+u~t+%;MT)M+luX0;5ofC+OG81$"
        "Lg+)tf;74L{?!%_2F>l9jPAw3OZ;+`7r&yY64M5Yqyvx=$MK0!<bH}elkFIhR2;O=XW8lO~{`YQg5&Snu52x6e_s5I6iC(WC2;*~iA=walE}"
        ">6|<+bhKes_7AO-oJj+t{O5wRp>cTjmy@7-T)9HU*7m#=7F|PsdA1&r%%UfAQ>r|Mj<o3I"
    ),
    "validation.json": (
        "T>t<81poj4|NsC0{{TIRh{rT5ZOvpSm|s77U`UhI?x4$iCsD9Gtm@_0ghk{Jk`Pyw=i@}DqN!a1L0igy&@ed4yE=ztDwApA*Jh$U3J*GyJq?"
        "U5E~srP(NGUEkNzO#EffIx;EpKTs*-2}V)HgRg*3B+sRPts*_&5GUP2bD`Qy9WS79aA9JRhM!LFncD8MU+SD@{WXv5uaGMsH33u5ZpES=C;#"
        "i9pKF3vgC*?5ipdxHs*jN!nw>{=(ew~>IVcRJukUlzb?3w;ukV~GrtLBjki!bQVqk>#wKnI7PfGcUU=k_+rUqU*)S35O+6!wCl@VKK|ftz`D"
        "td>Y!aEPaE5dl>~46bmUDh0YbY#2vQ5gL3a?VQ{<Y@m|_(B!%WC{MMuaXPv~kiYQ4RD+LNb)Vw!Ljpo`#v*B}wXSU>I+4|vFEMh!p>u`=WEj"
        "bJjr6$OT7!?u(e#`uON_8QmRX7bUcmYaW@qT5-i;I3~SmEd`|Nq{>6@C"
    ),
    "net.safetensors": (
        "T>t<81poj4|NsC0{{R32RYYANw#lb8N!myMNKh#_jUK3J6nZwIcP^4}dzC1<luPPOl5SE^v*%rl)@`?SS%P1QgBMe<irSfi$rkogjxn!7Kd>"
        "tpEM#JFmS!M>Q$~$|Z!54RU||3v6Py}5UzzDJqPzk@wBh_>*l-g_GLFVNP@l(l@W7Ps#VW)VT;=c>f*AQ8n-J#K9|s$er?R5Pz~TQCsikYop"
        "JZ8D{nMJ<&JC+^f3y<S=Gv=O*4$zUW2=x>1ma7N3yV7BuE3b#!Tz`@A<cGHU-vx4(&?#VP@q1F-4c_%@@z*J;W%7{>Z@{Nl<)#r<QJKuAyyx"
        "$ncu^ME<g%qy72JxYwxv$egkvgQ0G1?muBQxO?m6y%VNNegmM~Pw+3*@g|OCO;iAJNPI#+~C7jHrBtD=BAmQ<88o`m?+(;F5AdcwQ1=ZaGor"
        "AZsU{{?BEp>-7LnHiYzF*o^D2BH=<%wiDQCY<VyRG=lj44HKyOFkv{W0BSShP%y)`7-5c&u0-Qh-mcAf=uJGr@_9oXKO*KnK%>K}iJ2^!`%5"
        "j=Z$_`$#sOyAYsl(+#NKRU^LVnl?@hipk7mjO3>KzyJrKY{~N&VgLvD!F56S+%yP*G{*YBVmH-f4zJurcbiS7I+%pO`~K$5vFyFnuvb&6!}-"
        "xfOA50}qpP~0Kk$v5epENry1_l_7(k5CGm!{S9>f!~k@36PEhr<|8Kdvp-G)xkKzA2)QN@(sOt^}&hQaCUZ%l>pp#MLsH9W{ykij?mN0=q~B"
        "F@e1)2$;bfl3YZ>j_^$BKS0H;R(7td48EI|Nob828j"
    ),
    "train/checkpoint.previous.safetensors": (
        "T>t<81poj4|NsC0{{To0yc%b*5sw~!4y)04%uZ{NRk3UfdE2yvubECQAE)7conF2E|KtIVI3}e3X-SUKT}Qj27Qhvccoo9^5u#orn{I#Qi?J"
        "sp(tqq8g(4kV3HSuCQK3H>qoF^fJb;wdP~|;D-?Uh^Chz@5`=MVS<4E1GZZ4`s0H-I?!Vh;r`r>Utv#uurbZ^1Jb;i&R56!Z??em2sw+~2>>"
        "g2d?GIxjRsBjoGj*yH398{uJKidDQ#PG3hC!!L4WQF|#E&=LDpB^JDz@N^E4kv6A^TTwuZJ{$uXQY8<KH!s7vx&rsw<lVO^UK2iPx=IQsOY4"
        "LQs=<dBy{$<ibafXCJ06gEXZjm3OcAO=42{J7<sNzj}s)2o3e{!)&Qp!PngmA-_RC!5s0cPU6N5%xTGR&Pa)_aDmHae(&c{npfM9#G|qXo?!"
        "W!W4u#aq48!<Y&J!Sc%Zg}u@TAoaDG0@40^@nW8U5BuBH_&3WnG#XO+B65;+KEJ3SxZDwh1<>SD}2xzbcOlpmD1CR7?6tq?QV7)B|eF`w#g6"
        "o(knY?gIhBMzw-hhgCI8VMRgTFmhMDB9kYUNIxxtY0sOFkBvaRH_>V#_F1XJ1D{-oM&i%Kqeu3+ZNb|5i#nU*3?V~7RwqwjLLV6Ayk{Y3&lA"
        "tn5YXhHxi%oqG*u3Fu@w`XjAidOFhsuPv$<ejb`u!bL*n`JM%PfsPik>7mIqZEgORhSbLM$Ra5bx658U@bfP4TbwQ+k$VTu~m^ya*`PwP9ky"
        "J;<Bf*u7i=g29ZSv@(-lF)gXKfx|FO`kjat8uL7RL#wk?lo-jR0SySzhnHtrB=}@L}Zq-#N2JBDap=Y)93dAyPTv6i?I`FSDBFv%t23IM&W#"
        "gK8%NeYK*YMd<Xh}r>o~La2&Q$@J;+Hm@S-wY0*N-F7J-UAKXNq>N;T{?I^`ua27cNI2Da4XU(V?B3v3PuJZOH+@|Y};zJ}A8=Fzo0Ozor&W"
        "r+bBz%pYNRE+)0jx3R`bZ&ild(CZEa#l*)^Mh(!;oTL<h>bxHF8dP1SpW>#j$l<(&AOWrAiIq&t@D~XWyU<E#z<)J8!#WE4bw1sZ71^&!4*Z"
        "?Q~M8+Uv`ItV1g84Vj5JZ$r2P=7*Gf$=x}TkrdiH8)?}zXN)@G`f}>d>q~;0x7zz;lnVf}{|YJOg$MLR=|TivPgHA;00V|g49Djlb&R3<JrO"
        "l5x&Zmtsy<e%B;TE-7@PUgXpj`UtVEU``TIF>R04<{kkF6Om>lnMP{w}bA2mLn-M;O&m;yhCZ{Ut!tGga60~bA!_0LG+z*&Q&v`KA*dgT6z;"
        "~Q9MA10MrtvTw2tRz#xFF4HCrWf<^f*j7)H};HNpkvJe?_Y$ZG`$``GqV15z1Na=2=W?KTru;kvm+jc>n8_Bl#SQgK_MbeB;j>u_8ncry6-u"
        "DKej+sofV9**61Cj2Y&}EZeIN&{~0fF5c4Ykc46C)n7~}|v`&XUw?TT-x8@@hu>rZ7mSdD7M<ycr%)m8IH1EoCiPL86X3-Zh16UOe*+&L8OP"
        "`)}q*uQ!ciY^8&x82N1#er~^|Ie=9l*ksYL%Ok@(Wfc{1j+^yKhFL);@LZG7OP|>aH1Orvn(dawx8%N@`l8d<&MVjpT=^f-<m04HKg;Vv&D8"
        "uXV1UjEA%cka5CF{%C$|Rd&^NHE4G9FT263ZzMo?s#3B-93^kyI28CB%sH0v6Ju3GD|tdo`PaVqYa0;h`o!@Ul7=w0CIiTTsMtT0??WU@N6q"
        "a(J5%S9dB9>QZOtVQv=3}v2ZhZW$VW5)mTW%!a2-Di*KTGHF5sfy8jtz@w8t5XtZ)%oooooqux+^?j?%T+>lqNpBlF8EOmrWBPn=nL1P-D`Y"
        "sHl$lf->0ug_eqaeb3lWrlG@No0zbW%0vVvLun2g2fi9NsEta+Q}a4OsTXg_w4{^edy{ya4nt;Sn<VwTEV(mQYJ$y^&qSAf2~J)gP?aLeIr("
        "oe;r-F#-VX?%odS{>2xvy^jv1A3@V7BCKncWPlV!=;+J=tiU&c`3suM`m9+_RQANxRoZ3-v*}F{^TmZ2eRCPu<MDj;Ikfs%kbmTvF<Jfe!FU"
        "MS-xz@yvG3OunoOlom&JR+p^N6ec`<OvyNvIBCSXZ)yW-XPOiD|1L^O6i^gB2uo6H0tFH#uj2#Ci<5udCeRW>8NXMhrB$0l>a9;P5-noF*Sa"
        "5eC=e)$tKYFe$RJm<#3sROZI>NCu`9ar2-N$aM5IIC#wH-UoKGkS4}R0;2fsH~;ngZ_BEbt&j;!BHobcBt{d1gWBFzPDI`%<+R-cT=~C|Z{&"
        "?_e0lLhcp?*SvfC6%?o|zeQyH;3-ed{UqLs;vSn7C>83(%>_gMK<DY8c_kGQ7PXJ!tC*<?DDRf?Q2mu@Z|f5p;HN%}Z9Oe{NtkeKm+Z%#N=w"
        "6<n<KhJ>07I$|cABoG5>V^^@uKZd%bRa6PX*~q@oinKN?wWUdo4kU9?6O14+13`pAfO;vhu#Su9P4y>QhbHLEhLp~s8xevmBtqqwb`?=v>Ku"
        "DWHrzxCg6;}qa<2KZl{1^v~UyxKWyrl0@A6Q5!_bS_H8x!qsa!zrz)*G>RRHJY_PdgGqWrX;pog{?V2N<+d$^_G5CI(n>13gK{7)&W5j2>Nc"
        "<%^IeSa5)10fF3{;;Rt<J_jMNo7mQh`4)d?DPiqU9W-Envg%$ik$`AiIzfPGYs4{5BFH$?XHeujemU+39ypu*E91-C%lsL2vE7nn@m%9GDyT"
        "1UA_n+?4h*>XPgP{_M3PZVhMzHe%!^w|P+j)%6Dc{=&)"
    ),
    "train/checkpoint.safetensors": (
        "T>t<81poj4|NsC0{{UzW{2FJm5sw~!4y)04%uZ{NRk3UfdE2yvubECQAE)7conF2E|KtIVI3}e3X-SUKT}Qj27QhvccopXsImT@#2Y@h;x96"
        "aQjwv2w-s-YevHJat&AXjQ4)Z4Bhy=V2m?c)36cLIs2ZX9m9OTrh5JRi?K)wQK0@VV(EHcKtCe$%LOQveE*CXa#Jk4-@bfve@zjam~LbZcm-"
        "p$6EOhohM2R(OVl1`@^bnIrHY!;OEyQvHau~m24Fy6kq$9z&alLMoBjFdOb3=ERJ5*sc}5&>0+?Qc$1cq;>-;@GAb)Gc*_8U3Tfpbbq|{G`W"
        "`u#e{h=XZ3ET}OXAB2eaw@S_n!&gh2li0cLd_l>tMr%vhp?6A&!=Ra9v@%<ZA0_YnLuZ@y(%47pP5?*fdnwf@hdr<Rf6CSBb1w7If_Cr*&Jz"
        "=#(?}xRO2;>==V`fvaF=AIj=Q^9kd`>qM11mDz(-?n)bRjrqrtQ9|fxbF8VFyFFMQzBq5_%pNAw^_+F{JlDdxely<RB<#u#~xFu}lyF9nVKV"
        "pox>Baq#31@QZ2$s2n<o?vIR!Y6^7s{LQb59$IId-mVvcXN4IZ%;As&NZz~q1H!_xX!jU6H_0lFmEWe24d(&jK~c82WHx#$1kM)OPASwv@d="
        ";W#9nbRq0>7!&-pp_0z(*Rkf4*yVD-k)IgH^=8Is=E%=$XCsCftX{-h)Z3WcCT<PQc+2zqP^Y%VWNpe4(23)eL)x5CWHSc0gLE1dGcfy(T&="
        "_<C+$h#gwl>wfWJ{>1!rHp>ME>Eio;Ag<H`y2I=6r<hNAT(IoUZwK?1!1N^RuwBn_g~O|g<%sEGou+cv|kpJ0O(vqT*3~5&9lv)5~p?(6uCK"
        "6BnEb>am#}^Alvwr%&NAZelUhFg`C%%>cteeb-CM@t$4PVbcaZVXzz7>`dVS@!l=L8YW3$T)Vw6pUWbe<ye;8pAhXs=bJQnvk@nA<lqTnE4p"
        "aN-Kd?2)@PD9${Txi#;n=ixy{8u$gB9N@bVS_EiN<s78Yb;tVPtSQLyL<6x11Zs17iG|i`9|SWj98<)t0!)brXkgpJfW~e*G5TvJBt^C%k;c"
        "aYJW}1D5sXQk~q}^}0}Ad3Tcy6LI_7aJY0C?9-Sg>G63ZzH^-;1|3g1|1CtfoPlFbnH=)#lt3yaAw`$jB1gx32-s!?4QTa7>j7BT1pToFnc2"
        "b|JsCZ1;2jFOvqWfs!y)o5sZQ8gE9R4s;*ioC!tUWYD}pPaOzMg&HIul6J*N&05lxX2Zh}qJk|0PV>t01<;y{xiotACh|5Z_n{^juma<OX4c"
        "ce8GKJb{MINwOacFFH)XY%T}JqKUU&`RPmls_@hlZiq5Lc^af+9)>jUny<mL&9PkJG}T!?P2D@TA7X;>26;#h)uVi9-67V-cV0Wk<n*BTM)U"
        "h1*Z66n}L4D5k&L^gTv@8FM~dGO+sHClXlF2^chi|`M(w(X-n&hX;X`%guTT?&W{?D^2BG_BV1mbV%BFlu%an>b1uQTT0(>5$N*tk{&l~~iQ"
        "kh5FR9Io0kOv!uD-HUAb&b~^;e6KOYf<k!&gk)i<)f-5=_wZPJnrTJqUz9aUi^6Gp@_?jS2w|3vi{{Gs;kwE@mH2R$D>}ymf8p-em8A5XT&O"
        "?1I)_8RuHO?X16O=JtAFHO<Mz`RA?p3oWOZ#pfl($0wrufhv}3kGDG@&jqC6aH3+^84P@_6?mMTKw8~bXs6!nr7w&U%VD;a59!GMq7s^D`4N"
        "4;;!kh@=+&=zUd72L_LSr@1JpEW$U>0C5Op}4<(wDs2wMCk(X{fibGhoB`t*V1UA@01iZ7C0>nW4XcciLJ@OVBq*%ki;d##~o7vjzpB9sNow"
        "iC#khu#j>qvTbHyFhybRBeV?D_s?M-&qWh83?+_3=|Jy^iHx>?4dYRW>S!%p`g?)NH}p>$ZZ&U*F}Dx$`~ymydW8oJ+z8Ob1bZ-tSI*hodzx"
        "YZ6Rj>J&zr=CW=5n)zuHeqc4Hs6ZyR(%8E0v`mniEgXd?g5kd5wV`>j6OKV+TKQGtX*x=!mgQWmxpyI~Fzf&u}g3xuLs#DNthC^5ejF^_FrR"
        "Z<+6&~d=6Sb=ko#$X$a8r=XXa!+%p9BU|4W`G(5T;<8mgfkt{@L->sCGs5XTtgvXDnh)GnJQALi#nI1s)bn@gbWjAkwxar7$viXwK`DfOI=_"
        "a>)p2ysvde)MHeJ%67FLqPxk7h|142y^LocsHe_0&pA)F@OI~TyFR}}aA#71PqF8{!Bb-i7<=f%>j-<lm>N8aUB3&aNQ~E5_iER@9h`FThHd"
        "z{C?#S9+Ya#RXP#ZjW^3B-!DrJ)Yka%JvPrfEuU_>co#zKwGvtoJGOe)FJ!u^rZ8!Q*10<p805#*%2i##6!j4tGw8!lKG&9<_Uy;8L_w%6#M"
        "x%u$HI{;XF@MUJZtjZIML1az_7EZ%*TA3DNhI;?=O4K~^Tpjq9|4Tw4X&^-6v`Uk+iGHQ-JNceWNo-g#)-eGtb|whdJDZ~6tpdny9Ca5)qvU"
        "fwp(q2ozDQYzGxj5;HjshBN(hEn_9AG=56(W9DK}}n1m`Ptstj(kR66s0g0a1?0{QK&Q!IPbv@4aZ!rY)&x^?OcAe;hF^HMlCjuV2^aQ9G>7"
        "%6KqeC(b=1YryJxs(*f;Vp_gsoV~3^|~7B_WI1OhB2$Q99}8r+g>R*|U$&kU8@?VURd5+J%XNKVM^N+|!%hUha!jh-WHyVVb$(*ujiAbVXi!"
        "KHtk|qNrCL<Ag{lcA=QPL0nDHW57dl_Y6qV&&WoEKjQ;Nm_wDTO1n!T!&|^hmBwRIm-yF3A?+xkMs54b=JaY3N!ewtgrRG_kV*1~#=93dlJ7"
        "tC;|%Xf?Hc`NpF#"
    ),
}


def write_old_run(folder: Path, *, finished: bool = True) -> Path:
    """Writes the run; not `finished`, as it was after the first of its two epochs, when it was killed."""
    files = {name: lzma.decompress(base64.b85decode(text)) for name, text in FILES.items()}
    if not finished:
        files = {
            "recipe.json": files["recipe.json"],
            "train/checkpoint.safetensors": files["train/checkpoint.previous.safetensors"],
        }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder
