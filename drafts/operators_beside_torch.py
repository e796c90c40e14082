import sys, copy, traceback, warnings
warnings.simplefilter("ignore")
import torch, torch.nn as nn, torch.nn.functional as F, numpy as np
import pstranspile.frontends.torch.training as T
T._DEBUG = "-d" in sys.argv
only=[a for a in sys.argv[1:] if not a.startswith("-")]
CASES={}
def case(f): CASES[f.__name__]=f; return f
N=8
def x(*s): return torch.randn(N,*s)
def ids(n,*s): return torch.randint(0,n,(N,*s))
def fn(f):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.l=nn.Linear(6,6); s.o=nn.Linear(6,1)
        def forward(s,a): return s.o(f(s.l(a))).mean()
    return M(), lambda: (x(6),), None
UN=dict(relu=torch.relu,sigmoid=torch.sigmoid,tanh=torch.tanh,exp=torch.exp,log=lambda a:torch.log(a.abs()+1),sqrt=lambda a:(a*a+1).sqrt(),rsqrt=lambda a:(a*a+1).rsqrt(),abs=torch.abs,cos=torch.cos,sin=torch.sin,erf=torch.erf,silu=F.silu,gelu=F.gelu,gelu_tanh=lambda a:F.gelu(a,approximate="tanh"),leaky=F.leaky_relu,elu=F.elu,selu=F.selu,softplus=F.softplus,softplus2=lambda a:F.softplus(a,2,1),mish=F.mish,hardtanh=F.hardtanh,clamp=lambda a:a.clamp(-0.5,0.3),clampmin=lambda a:a.clamp(min=0.1),hardswish=F.hardswish,hardsigmoid=F.hardsigmoid,relu6=F.relu6,logsigmoid=F.logsigmoid,log1p=lambda a:torch.log1p(a.abs()),expm1=torch.expm1,square=torch.square,pow3=lambda a:a**3,pow15=lambda a:(a.abs()+1)**1.5,twopow=lambda a:2**a,recip=lambda a:1/(a.abs()+1),div=lambda a:a/3,rsub=lambda a:1-a,softmax=lambda a:a.softmax(-1),logsoftmax=lambda a:a.log_softmax(0),softmax0=lambda a:a.softmax(0),
 lse=lambda a:torch.logsumexp(a,1,keepdim=True)+a,var=lambda a:a.var(1,keepdim=True)+a,std=lambda a:a-a.std(0),vard=lambda a:a.var(1,unbiased=False)[:,None]*a,norm=lambda a:a/a.norm(dim=1,keepdim=True),norm1=lambda a:a/a.norm(p=1,dim=1,keepdim=True),fnorm=lambda a:F.normalize(a),
 cumsum=lambda a:a.cumsum(1),flip=lambda a:a.flip(1)*a,roll=lambda a:torch.roll(a,2,1)*a,where=lambda a:torch.where(a>0,a,a*0.1),maskfill=lambda a:a.masked_fill(a<0,-1.0),maximum=lambda a:torch.maximum(a,a.flip(1)),maxdim=lambda a:a.max(1,keepdim=True)[0]+a,amin=lambda a:a.amin(1,keepdim=True)+a,mindim=lambda a:a.min(dim=1).values[:,None]*a,prod=lambda a:a.prod(1,keepdim=True)+a,topk=lambda a:a.topk(3,1)[0].sum(1,keepdim=True)+a,sort=lambda a:a.sort(1)[0],sortd=lambda a:a.sort(1,descending=True).values*a,
 triu=lambda a:(a[:,:,None]*a[:,None,:]).triu(1).sum(2),diff=lambda a:F.pad(a.diff(dim=1),(0,1)),repeat=lambda a:a.repeat(1,2)[:,:6]*a,repint=lambda a:a.repeat_interleave(2,dim=1)[:,3:9],chunk=lambda a:torch.cat(a.chunk(2,1)[::-1],1),split=lambda a:torch.cat([p*i for i,p in enumerate(a.split([1,2,3],1),1)],1),unbind=lambda a:torch.stack([p*2 for p in a.unbind(1)],1),stack0=lambda a:torch.stack([a,a*2]).sum(0),sliced=lambda a:a[:,1:5:2].sum(1,keepdim=True)+a,selected=lambda a:a[:,-1:]+a[:,0:1]*a,neg=lambda a:a[:,-3:].repeat(1,2),einsum=lambda a:torch.einsum("bi,bj->bij",a,a).mean(2),einsum2=lambda a:torch.einsum("bi,bi->b",a,a)[:,None]*a,outer=lambda a:(a@a.t()).softmax(-1)@a,bmm=lambda a:torch.bmm(a[:,None,:],a[:,:,None])[:,0]*a,gatherd=lambda a:a.gather(1,(a>0).long())*a[:,:1]+a,index=lambda a:a[:,[2,0,1,5,4,3]],indexrow=lambda a:a[torch.arange(a.shape[0]),(a.argmax(1))][:,None]*a,onehot=lambda a:F.one_hot(a.argmax(1),6)*a,mean0=lambda a:a-a.mean(0),inplace=lambda a:(a*2).add_(1).mul_(0.5).relu_(),setitem=lambda a:_set(a),cosim=lambda a:F.cosine_similarity(a,a.flip(1),dim=1)[:,None]*a,lerp=lambda a:torch.lerp(a,a*a,0.3),addcmul=lambda a:torch.addcmul(a,a,a,value=0.5),scatter=lambda a:torch.zeros_like(a).scatter_add(1,(a>0).long(),a)+a,scatterv=lambda a:torch.zeros_like(a).scatter(1,a.argmax(1,keepdim=True),1.0)*a,logical=lambda a:a*((a>0)&(a<1)).to(a.dtype),anyr=lambda a:a*(a>0).any(1,keepdim=True),T=lambda a:(a.T*2).T,perm=lambda a:a[:,None].expand(-1,3,-1).permute(2,0,1).sum(2).T,viewflat=lambda a:a.view(-1).view(a.shape[0],2,3).flatten(1),sizemul=lambda a:a*a.shape[0]/a.size(0),meansum=lambda a:a/a.sum(),detach=lambda a:a*a.detach(),logitclip=lambda a:a.clamp(max=a.mean()),arange=lambda a:a*torch.arange(6),full=lambda a:a+torch.full((a.shape[0],1),0.5),masksel=lambda a:a[a[:,0]>0].sum(0)+a)
def _set(a):
    b=a.clone(); b[:,0]=0; b[:,2:4]=b[:,2:4]*2; return b
for k,f in UN.items(): CASES["f_"+k]=(lambda f=f: fn(f))
def lossc(net,f,*mk,opt=None):
    def make(): return net(), (lambda: tuple(m() for m in mk)), f, opt
    return make
ln=lambda *a:(lambda: nn.Linear(*a))
C=CASES
C["ce"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a),y),lambda:x(6),lambda:ids(5))
C["ce_ig"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a),y,ignore_index=2),lambda:x(6),lambda:ids(5))
C["ce_ig100"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a),torch.where(y==1,-100,y)),lambda:x(6),lambda:ids(5))
C["ce_w"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a),y,weight=torch.tensor([1.,2,3,4,5],dtype=a.dtype)),lambda:x(6),lambda:ids(5))
C["ce_s"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a),y,label_smoothing=0.1),lambda:x(6),lambda:ids(5))
C["ce_sum"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a),y,reduction="sum"),lambda:x(6),lambda:ids(5))
C["ce_none"]=lossc(ln(6,5),lambda m,a,y:(F.cross_entropy(m(a),y,reduction="none")*a[:,0]).mean(),lambda:x(6),lambda:ids(5))
C["ce_soft"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a),y.softmax(1)),lambda:x(6),lambda:x(5))
C["ce_seq"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a).transpose(1,2),y),lambda:x(4,6),lambda:ids(5,4))
C["ce_flat"]=lossc(ln(6,5),lambda m,a,y:F.cross_entropy(m(a).view(-1,5),y.view(-1),ignore_index=0),lambda:x(4,6),lambda:ids(5,4))
C["nll"]=lossc(ln(6,5),lambda m,a,y:F.nll_loss(F.log_softmax(m(a),1),y),lambda:x(6),lambda:ids(5))
C["bce"]=lossc(ln(6,1),lambda m,a,y:F.binary_cross_entropy(m(a).sigmoid().squeeze(-1),y.to(a.dtype)),lambda:x(6),lambda:ids(2))
C["bcel"]=lossc(ln(6,1),lambda m,a,y:F.binary_cross_entropy_with_logits(m(a)[:,0],y.to(a.dtype)),lambda:x(6),lambda:ids(2))
C["bcelp"]=lossc(ln(6,1),lambda m,a,y:F.binary_cross_entropy_with_logits(m(a)[:,0],y.to(a.dtype),pos_weight=torch.tensor(2.0,dtype=a.dtype)),lambda:x(6),lambda:ids(2))
C["mse"]=lossc(ln(6,1),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
C["l1"]=lossc(ln(6,1),lambda m,a,y:F.l1_loss(m(a),y),lambda:x(6),lambda:x(1))
C["sl1"]=lossc(ln(6,1),lambda m,a,y:F.smooth_l1_loss(m(a),y,beta=0.5),lambda:x(6),lambda:x(1))
C["huber"]=lossc(ln(6,1),lambda m,a,y:F.huber_loss(m(a),y,delta=0.7),lambda:x(6),lambda:x(1))
C["kl"]=lossc(ln(6,5),lambda m,a,y:F.kl_div(m(a).log_softmax(1),y.softmax(1),reduction="batchmean"),lambda:x(6),lambda:x(5))
C["triplet"]=lossc(ln(6,5),lambda m,a,b,c:F.triplet_margin_loss(m(a),m(b),m(c)),lambda:x(6),lambda:x(6),lambda:x(6))
C["margin"]=lossc(ln(6,1),lambda m,a,b:F.margin_ranking_loss(m(a),m(b),torch.ones_like(m(a)),margin=0.1),lambda:x(6),lambda:x(6))
class Emb(nn.Module):
    def __init__(s,sparse=False,bag=None,pad=None):
        super().__init__(); s.e=nn.EmbeddingBag(20,6,mode=bag,sparse=sparse,padding_idx=pad) if bag else nn.Embedding(20,6,sparse=sparse,padding_idx=pad); s.o=nn.Linear(6,1); s.bag=bag
    def forward(s,i,w=None):
        h=s.e(i) if w is None else s.e(i,per_sample_weights=w)
        return s.o(h if s.bag else h.mean(1)).squeeze(-1)
bl=lambda m,i,y:F.binary_cross_entropy_with_logits(m(i),y.to(torch.float64 if next(m.parameters()).dtype==torch.float64 else torch.float32))
adg=lambda m:torch.optim.Adagrad(m.parameters(),lr=0.05)
sgd=lambda m:torch.optim.SGD(m.parameters(),lr=0.1)
for nm,kw in dict(emb={},embsp=dict(sparse=True),embpad=dict(pad=0),bagsum=dict(bag="sum"),bagmean=dict(bag="mean",sparse=True),bagmax=dict(bag="max"),bagpad=dict(bag="mean",pad=1),bagsp=dict(bag="sum",pad=1,sparse=True)).items():
    C[nm]=lossc(lambda kw=kw:Emb(**kw),bl,lambda:ids(20,4),lambda:ids(2),opt=adg)
C["bagw"]=lossc(lambda:Emb(bag="sum"),lambda m,i,w,y:F.binary_cross_entropy_with_logits(m(i,w),y.to(w.dtype)),lambda:ids(20,4),lambda:x(4),lambda:ids(2))
class Net(nn.Module):
    def __init__(s,*mods,post=None): super().__init__(); s.n=nn.Sequential(*mods); s.post=post
    def forward(s,a): 
        h=s.n(a); return (s.post(h) if s.post else h)
def img(*mods,post=lambda h:h.flatten(1).mean(1)):
    return lossc(lambda:Net(*[m() for m in mods],post=post),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(3,8,8),lambda:x())
cv=lambda *a,**k:(lambda:nn.Conv2d(*a,**k))
C["conv"]=img(cv(3,4,3,padding=1),nn.ReLU,cv(4,2,3,stride=2))
C["convbn"]=img(cv(3,4,3,bias=False),lambda:nn.BatchNorm2d(4),nn.ReLU,lambda:nn.MaxPool2d(2))
C["convg"]=img(cv(3,6,3,groups=3,dilation=2),lambda:nn.AvgPool2d(2))
C["convt"]=img(lambda:nn.ConvTranspose2d(3,2,2,stride=2))
C["adapt"]=img(cv(3,4,3),lambda:nn.AdaptiveAvgPool2d(1))
C["adapt2"]=img(cv(3,4,3,padding=1),lambda:nn.AdaptiveAvgPool2d(2))
C["gn"]=img(cv(3,4,3),lambda:nn.GroupNorm(2,4))
C["inorm"]=img(cv(3,4,3),lambda:nn.InstanceNorm2d(4,affine=True))
C["prelu"]=img(cv(3,4,3),lambda:nn.PReLU(4))
C["upsample"]=img(cv(3,4,3),lambda:nn.Upsample(scale_factor=2))
C["conv1d"]=lossc(lambda:Net(nn.Conv1d(3,4,3,padding=1),nn.ReLU(),nn.MaxPool1d(2),post=lambda h:h.flatten(1).mean(1)),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(3,8),lambda:x())
C["ln"]=lossc(lambda:Net(nn.Linear(6,6),nn.LayerNorm(6),nn.Linear(6,1)),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
C["rms"]=lossc(lambda:Net(nn.Linear(6,6),nn.RMSNorm(6),nn.Linear(6,1)),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
C["bn1"]=lossc(lambda:Net(nn.Linear(6,6),nn.BatchNorm1d(6),nn.Linear(6,1)),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
C["bnnoaff"]=lossc(lambda:Net(nn.Linear(6,6),nn.BatchNorm1d(6,affine=False),nn.Linear(6,1)),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
C["bnnostat"]=lossc(lambda:Net(nn.Linear(6,6),nn.BatchNorm1d(6,track_running_stats=False),nn.Linear(6,1)),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
C["bncum"]=lossc(lambda:Net(nn.Linear(6,6),nn.BatchNorm1d(6,momentum=None),nn.Linear(6,1)),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
C["bneval"]=lossc(lambda:_frozen(Net(nn.Linear(6,6),nn.BatchNorm1d(6),nn.Linear(6,1))),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(6),lambda:x(1))
def _frozen(n): n.n[1].eval(); return n
class RNN(nn.Module):
    def __init__(s,k,**kw): super().__init__(); s.r=getattr(nn,k)(5,7,batch_first=True,**kw); s.o=nn.Linear(7*(2 if kw.get("bidirectional") else 1),1)
    def forward(s,a): return s.o(s.r(a)[0][:,-1])
for nm,(k,kw) in dict(lstm=("LSTM",{}),gru=("GRU",{}),rnn=("RNN",{}),lstm2=("LSTM",dict(num_layers=2)),bilstm=("LSTM",dict(bidirectional=True)),bigru=("GRU",dict(bidirectional=True,num_layers=2))).items():
    C[nm]=lossc(lambda k=k,kw=kw:RNN(k,**kw),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(4,5),lambda:x(1))
class Cell(nn.Module):
    def __init__(s,k): super().__init__(); s.c=k(5,5); s.o=nn.Linear(5,1)
    def forward(s,a):
        h=torch.zeros(a.shape[0],5,dtype=a.dtype)
        for t in range(3): h=s.c(a[:,t],h)
        return s.o(h)
C["grucell"]=lossc(lambda:Cell(nn.GRUCell),lambda m,a,y:F.mse_loss(m(a),y),lambda:x(4,5),lambda:x(1))
class Att(nn.Module):
    def __init__(s,mask=False): super().__init__(); s.a=nn.MultiheadAttention(8,2,batch_first=True); s.o=nn.Linear(8,1); s.mask=mask
    def forward(s,a,pad=None):
        h,_=s.a(a,a,a,key_padding_mask=pad,need_weights=False) if pad is not None else s.a(a,a,a)
        return s.o(h.mean(1))
C["mha"]=lossc(Att,lambda m,a,y:F.mse_loss(m(a),y),lambda:x(4,8),lambda:x(1))
C["mhapad"]=lossc(Att,lambda m,a,p,y:F.mse_loss(m(a,p>1),y),lambda:x(4,8),lambda:torch.cat([torch.zeros(N,1,dtype=torch.long),ids(3,3)],1),lambda:x(1))
class TE(nn.Module):
    def __init__(s): super().__init__(); s.e=nn.Embedding(20,8); s.p=nn.Parameter(torch.randn(5,8)); s.t=nn.TransformerEncoder(nn.TransformerEncoderLayer(8,2,16,dropout=0.0,batch_first=True),2); s.o=nn.Linear(8,20)
    def forward(s,i): 
        m=nn.Transformer.generate_square_subsequent_mask(5).to(s.p.dtype)
        return s.o(s.t(s.e(i)+s.p,mask=m,is_causal=True))
C["transformer"]=lossc(TE,lambda m,i,y:F.cross_entropy(m(i).view(-1,20),y.view(-1),ignore_index=0),lambda:ids(20,5),lambda:ids(20,5))
C["sdpa"]=lossc(ln(6,6),lambda m,a:F.scaled_dot_product_attention(m(a),m(a),m(a),is_causal=True).mean(),lambda:x(4,6))
C["inbatch"]=lossc(ln(6,6),lambda m,a,b:F.cross_entropy(F.normalize(m(a))@F.normalize(m(b)).T/0.1,torch.arange(a.shape[0])),lambda:x(6),lambda:x(6))
C["masked"]=lossc(ln(6,1),lambda m,a,k,y:((m(a)[:,0]-y)**2*k.to(a.dtype)).sum()/k.sum(),lambda:x(6),lambda:ids(2),lambda:x())
C["dictb"]=lambda:(nn.Linear(6,1),lambda:{"a":x(6),"y":x(1)},lambda m,a,y:F.mse_loss(m(a),y),None)
OPTS=dict(sgd=lambda p:torch.optim.SGD(p,lr=0.1),mom=lambda p:torch.optim.SGD(p,lr=0.1,momentum=0.9,weight_decay=0.01),nest=lambda p:torch.optim.SGD(p,lr=0.1,momentum=0.9,nesterov=True),adam=lambda p:torch.optim.Adam(p,lr=0.01),adamwd=lambda p:torch.optim.Adam(p,lr=0.01,weight_decay=0.1),adamw=lambda p:torch.optim.AdamW(p,lr=0.01,weight_decay=0.1),adagrad=lambda p:torch.optim.Adagrad(p,lr=0.1),rms=lambda p:torch.optim.RMSprop(p,lr=0.01),rmsc=lambda p:torch.optim.RMSprop(p,lr=0.01,centered=True,momentum=0.9),adamax=lambda p:torch.optim.Adamax(p,lr=0.01),adadelta=lambda p:torch.optim.Adadelta(p,lr=0.5))
for k,o in OPTS.items(): C["o_"+k]=lossc(lambda:nn.Sequential(nn.Linear(6,8),nn.Tanh(),nn.Linear(8,5)),lambda m,a,y:F.cross_entropy(m(a),y),lambda:x(6),lambda:ids(5),opt=lambda m,o=o:o(m.parameters()))
C["o_groups"]=lossc(lambda:nn.Sequential(nn.Linear(6,8),nn.Tanh(),nn.Linear(8,5)),lambda m,a,y:F.cross_entropy(m(a),y),lambda:x(6),lambda:ids(5),opt=lambda m:torch.optim.AdamW([dict(params=m[0].parameters(),lr=0.1,weight_decay=0.0),dict(params=m[2].parameters())],lr=0.01))
C["o_two"]=lossc(lambda:Emb(sparse=True),bl,lambda:ids(20,4),lambda:ids(2),opt=lambda m:[torch.optim.SparseAdam(m.e.parameters(),lr=0.05),torch.optim.Adam(m.o.parameters(),lr=0.01)])
C["o_sgdsparse"]=lossc(lambda:Emb(sparse=True),bl,lambda:ids(20,4),lambda:ids(2),opt=sgd)
bad=[]; ok=0
for name,mk in CASES.items():
    if only and not any(o==name or (o.endswith("*") and name.startswith(o[:-1])) for o in only): continue
    torch.manual_seed(0)
    try:
        got=mk(); m,batch,loss=got[:3]; opt=got[3] if len(got)>3 and got[3] else (lambda m:torch.optim.SGD(m.parameters(),lr=0.1))
        m=m.double()
        def dbl(b): return {k:(v.double() if v.is_floating_point() else v) for k,v in b.items()} if isinstance(b,dict) else tuple(v.double() if v.is_floating_point() else v for v in b)
        bs=[dbl(batch()) for _ in range(6)]
        o=opt(m)
        t=T.trace(m,bs[0],loss=loss,optimizer=o)
        ours=t.train(bs)
        theirs=[]
        for b in bs:
            for oo in (o if isinstance(o,list) else [o]): oo.zero_grad()
            l=(loss(m,**b) if isinstance(b,dict) else loss(m,*b)) if loss else m(*b)
            l.backward()
            for oo in (o if isinstance(o,list) else [o]): oo.step()
            theirs.append(l.item())
        e=max(abs(a-b)/max(1,abs(b)) for a,b in zip(ours,theirs)); st=t.state
        for n,p in m.state_dict().items():
            if n in st: e=max(e,float((np.abs(p.numpy()-st[n])/np.maximum(1,np.abs(p.numpy()))).max()))
        if e>1e-6 or e!=e: bad.append(name); print(f"DIFF {name} {e:.2e} {ours[:3]} {theirs[:3]}")
        else: ok+=1
        if "-v" in sys.argv: print(name,e)
    except Exception as ex:
        bad.append(name); print(f"FAIL {name}: {type(ex).__name__}: {str(ex)[:600]}")
        if T._DEBUG: traceback.print_exc()
print(ok,"ok",len(bad),"bad",bad)
