import torch, numpy as np, warnings, sys, traceback
warnings.simplefilter("ignore")
import torch.nn.functional as F
import deepctr_torch.models as M
from deepctr_torch.inputs import SparseFeat, DenseFeat, VarLenSparseFeat, get_feature_names
import pstranspile.frontends.torch.training as T
T._DEBUG="-d" in sys.argv
torch.manual_seed(0); rng=np.random.default_rng(0)
sp=[SparseFeat(f"s{i}",50,embedding_dim=4) for i in range(4)]; de=[DenseFeat(f"d{i}",1) for i in range(2)]
vl=[VarLenSparseFeat(SparseFeat("v0",30,embedding_dim=4),maxlen=5,combiner="mean",length_name=None)]
feats=sp+de; N=16
def data(n): 
    return torch.tensor(np.concatenate([rng.integers(0,50,(n,4)),rng.normal(size=(n,2))],1)).float(), torch.tensor(rng.integers(0,2,(n,1))).float()
simple=dict(DeepFM=lambda:M.DeepFM(feats,feats),WDL=lambda:M.WDL(feats,feats),DCN=lambda:M.DCN(feats,feats),DCNMix=lambda:M.DCNMix(feats,feats),xDeepFM=lambda:M.xDeepFM(feats,feats),AutoInt=lambda:M.AutoInt(feats,feats),FiBiNET=lambda:M.FiBiNET(feats,feats),NFM=lambda:M.NFM(feats,feats),AFM=lambda:M.AFM(feats,feats),PNN=lambda:M.PNN(feats),CCPM=lambda:M.CCPM(feats,feats),MLR=lambda:M.MLR(feats),ONN=lambda:M.ONN(feats,feats),IFM=lambda:M.IFM(feats,feats),DIFM=lambda:M.DIFM(feats,feats),AFN=lambda:M.AFN(feats,feats),
 DeepFMv=lambda:M.DeepFM(feats,feats+vl))
bad=[]
for name,mk in simple.items():
    torch.manual_seed(0)
    try:
        m=mk()
        for mod in m.modules():
            if isinstance(mod,torch.nn.Dropout): mod.p=0.0
        m.train(); m=m.double()
        bs=[]
        for _ in range(6):
            a,y=data(N)
            if name.endswith("v"): a=torch.cat([a,torch.tensor(rng.integers(0,30,(N,5))).float()],1)
            bs.append((a.double(),y.double()))
        loss=lambda model,a,y: F.binary_cross_entropy(model(a),y)+0.0
        o=torch.optim.Adagrad(m.parameters(),lr=0.01)
        t=T.trace(m,bs[0],loss=loss,optimizer=o); ours=t.train(bs); th=[]
        for b in bs:
            o.zero_grad(); l=loss(m,*b); l.backward(); o.step(); th.append(l.item())
        e=max(abs(p-q) for p,q in zip(ours,th))
        for n,p in m.state_dict().items():
            if n in t.state: e=max(e,np.abs(p.numpy()-t.state[n]).max())
        print(name,f"{e:.1e}",len(t.module["main"].main_block.ops)); 
        if e>1e-6: bad.append(name)
    except Exception as ex:
        bad.append(name); print("FAIL",name,str(ex)[:300])
        if T._DEBUG: traceback.print_exc()
print(bad)
